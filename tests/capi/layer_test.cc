// The layer handle: all tensor namings, slices, replaced experts, and export and import of packed bytes.
#include "capi/layer.h"

#include <chrono>
#include <latch>
#include <thread>

#include "harness/allocations.h"

namespace sluice::test {
namespace {

TEST(CapiLayers, EveryNamingAndSliceGivesTheBitsOfTheCheckpoint) {
  const CapiDevice device;
  for (const MoeNaming naming : kNamings) {
    const RandomMoe moe(small_config(naming), 5);
    const int64_t number = naming == MoeNaming::kPlain ? 0 : 7;
    const CallersTensors tensors(moe.tensors(naming, number));
    for (const Slice& slice : {Slice{}, Slice{.tp_rank = 1, .tp_size = 2, .ep_rank = 0, .ep_size = 2}}) {
      CapiLayer layer(device, moe.config, slice);
      Message error;
      ASSERT_EQ(layer.load(tensors, error), SLUICE_OK) << word(naming) << ": " << error.str();
      EXPECT_EQ(layer.run(), through_cpp(moe, naming, number, slice, layer.x)) << word(naming);
      // The naming is given, and weights are loaded over others.
      sluice_weights named = tensors.all;
      named.naming = word(naming).data(), named.layer = number;
      ASSERT_EQ(sluice_layer_load(layer.layer, &named, error), SLUICE_OK) << error.str();
      EXPECT_EQ(layer.run(), through_cpp(moe, naming, number, slice, layer.x)) << word(naming);
    }
  }
}

TEST(CapiLayers, CallersNameANamingByThisWord) {
  constexpr std::pair<MoeNaming, std::string_view> kWords[] = {
      {MoeNaming::kGptOss, "gpt_oss"},
      {MoeNaming::kGptOssOriginal, "gpt_oss_original"},
      {MoeNaming::kGptOssBf16, "gpt_oss_bf16"},
      {MoeNaming::kDeepSeekV4, "deepseek_v4"},
      {MoeNaming::kDeepSeekV3, "deepseek_v3"},
      {MoeNaming::kQwen3Moe, "qwen3_moe"},
      {MoeNaming::kNemotron3, "nemotron3"},
      {MoeNaming::kMiniMaxM2, "minimax_m2"},
      {MoeNaming::kLlama4, "llama4"},
      {MoeNaming::kMiniMaxM3, "minimax_m3"},
      {MoeNaming::kMistralLarge3, "mistral_large_3"},
      {MoeNaming::kGlm5Next, "glm5_next"},
      {MoeNaming::kPlain, "plain"}};
  EXPECT_EQ(std::size(kWords), std::size(kNamings));
  for (const auto& [naming, named] : kWords) EXPECT_EQ(word(naming), named);
}

TEST(CapiLayers, PlainTensorsComeInEveryOrderOfGateAndUp) {
  const CapiDevice device;
  for (const DType w : {DType::kE2M1, DType::kBF16}) {
    std::vector<uint16_t> first;
    for (const GateOrder order : {GateOrder::kInterleaved, GateOrder::kGateFirst, GateOrder::kUpFirst}) {
      MoeConfig config = small_config(MoeNaming::kPlain);
      config.expert_w = w, config.gate_order = order;
      const RandomMoe moe(config, 5);
      const CallersTensors tensors(moe.tensors(MoeNaming::kPlain, 0));
      CapiLayer layer(device, config);
      Message error;
      ASSERT_EQ(layer.load(tensors, error), SLUICE_OK) << error.str();
      const std::vector<uint16_t> y = layer.run();
      if (first.empty()) first = y;
      EXPECT_EQ(y, first) << word(order);
    }
  }
}

bool is_of_experts(const std::string& name) {
  for (const char* part : {"experts", "mlp1_", "mlp2_"})
    if (name.find(part) != std::string::npos) return true;
  return false;
}

// Experts first .. first + count - 1 of tensors whose first dimension is the expert; the names stay.
std::vector<StoredTensor> experts_alone(std::vector<StoredTensor> tensors, int64_t experts, int64_t first,
                                        int64_t count) {
  for (StoredTensor& t : tensors) {
    if (t.what.shape.empty() || t.what.shape[0] != experts || !is_of_experts(t.what.name)) continue;
    const size_t each = t.bytes.size() / static_cast<size_t>(experts), at = each * static_cast<size_t>(first);
    t.bytes = {t.bytes.begin() + static_cast<std::ptrdiff_t>(at),
               t.bytes.begin() + static_cast<std::ptrdiff_t>(at + each * static_cast<size_t>(count))};
    t.what.shape[0] = count;
  }
  return tensors;
}

TEST(CapiLayers, ARanksOwnExpertsAreEnough) {
  const CapiDevice device;
  for (const MoeNaming naming : {MoeNaming::kGptOss, MoeNaming::kGptOssBf16, MoeNaming::kPlain}) {
    const RandomMoe moe(small_config(naming), 5);
    const Slice slice{.ep_rank = 1, .ep_size = 2};
    const CallersTensors tensors(experts_alone(moe.tensors(naming, 0), 8, 4, 4));
    CapiLayer layer(device, moe.config, slice);
    Message error;
    ASSERT_EQ(layer.load(tensors, error), SLUICE_OK) << word(naming) << ": " << error.str();
    EXPECT_EQ(layer.run(), through_cpp(moe, naming, 0, slice, layer.x)) << word(naming);
  }
}

// Only the tensors of one expert, in a naming.
std::vector<StoredTensor> one_expert(const RandomMoe& moe, MoeNaming naming, int64_t expert) {
  const std::string number = ".experts." + std::to_string(expert) + ".";
  std::vector<StoredTensor> out;
  for (StoredTensor& t : experts_alone(moe.tensors(naming, 0), moe.config.experts, expert, 1)) {
    const bool own = t.what.name.find(number) != std::string::npos;
    const bool fused = moe_names(naming).storage != ExpertStorage::kOneByOne && is_of_experts(t.what.name);
    if (own || fused) out.push_back(std::move(t));
  }
  return out;
}

TEST(CapiLayers, AnExpertIsReplacedByItsTensorsAlone) {
  const CapiDevice device;
  for (const MoeNaming naming : kNamings) {
    const RandomMoe before(small_config(naming), 5), other(small_config(naming), 6);
    CapiLayer layer(device, before.config), fresh(device, before.config);
    const CallersTensors old(before.tensors(naming, 0));
    Message error;
    ASSERT_EQ(layer.load(old, error), SLUICE_OK) << error.str();
    const std::vector<uint16_t> was = layer.run();
    // After all experts are replaced, one by one, the layer equals the other layer, except for the router and
    // the shared expert.
    for (int64_t e = 0; e < 8; ++e) {
      CallersTensors update(one_expert(other, naming, e));
      update.all.naming = word(naming).data(), update.all.layer = 0;
      ASSERT_EQ(sluice_layer_replace_expert(layer.layer, e, &update.all, error), SLUICE_OK)
          << word(naming) << ": " << error.str();
    }
    RandomMoe both = before;
    both.gate = other.gate, both.up = other.up, both.down = other.down;
    both.up_bias = other.up_bias, both.down_bias = other.down_bias;
    const CallersTensors whole(both.tensors(naming, 0));
    ASSERT_EQ(fresh.load(whole, error), SLUICE_OK) << error.str();
    const std::vector<uint16_t> now = layer.run();
    EXPECT_EQ(now, fresh.run()) << word(naming);
    EXPECT_NE(now, was) << word(naming);
    CallersTensors update(one_expert(other, naming, 0));
    update.all.naming = word(naming).data(), update.all.layer = 0;
    EXPECT_EQ(sluice_layer_replace_expert(layer.layer, 8, &update.all, error), SLUICE_INVALID_ARGUMENT);
    EXPECT_NE(error.str().find("wanted an expert from 0 to 7"), std::string::npos) << error.str();
  }
}

sluice_status append(void* context, const void* bytes, size_t count) {
  auto* to = static_cast<std::vector<char>*>(context);
  const auto* from = static_cast<const char*>(bytes);
  to->insert(to->end(), from, from + count);
  return SLUICE_OK;
}

std::vector<char> packed(const CapiLayer& layer) {
  std::vector<char> out;
  Message error;
  size_t bytes = 0;
  EXPECT_EQ(sluice_layer_packed_bytes(layer.layer, &bytes, error), SLUICE_OK) << error.str();
  EXPECT_EQ(sluice_layer_write_packed(layer.layer, append, &out, error), SLUICE_OK) << error.str();
  EXPECT_EQ(out.size(), bytes);
  return out;
}

TEST(CapiLayers, PackedBytesGoOutAndIn) {
  const CapiDevice device;
  for (const MoeNaming naming : {MoeNaming::kGptOss, MoeNaming::kDeepSeekV3, MoeNaming::kDeepSeekV4}) {
    const RandomMoe moe(small_config(naming), 5), other(small_config(naming), 6);
    CapiLayer layer(device, moe.config), again(device, moe.config);
    const CallersTensors tensors(moe.tensors(naming, 0)), others(other.tensors(naming, 0));
    Message error;
    ASSERT_EQ(layer.load(tensors, error), SLUICE_OK) << error.str();
    const std::vector<char> bytes = packed(layer);
    ASSERT_EQ(sluice_layer_read_packed(again.layer, bytes.data(), bytes.size(), error), SLUICE_OK)
        << error.str();
    const std::vector<uint16_t> want = layer.run();
    EXPECT_EQ(again.run(), want);
    EXPECT_EQ(packed(again), bytes) << "packed bytes include fingerprints";
    ASSERT_EQ(again.load(others, error), SLUICE_OK);
    EXPECT_NE(again.run(), want);
    ASSERT_EQ(sluice_layer_read_packed(again.layer, bytes.data(), bytes.size(), error), SLUICE_OK);
    EXPECT_EQ(again.run(), want) << "loaded over other weights";
  }
}

TEST(CapiLayers, PackedBytesOfAnotherLayerAreRefused) {
  const CapiDevice device;
  const RandomMoe moe(small_config(MoeNaming::kGptOss), 5);
  CapiLayer layer(device, moe.config);
  const CallersTensors tensors(moe.tensors(MoeNaming::kGptOss, 0));
  Message error;
  ASSERT_EQ(layer.load(tensors, error), SLUICE_OK) << error.str();
  const std::vector<uint16_t> y = layer.run();
  const std::vector<char> good = packed(layer);
  const auto refused = [&](const std::vector<char>& bytes, const std::string& part) {
    error.data[0] = '\0';
    EXPECT_EQ(sluice_layer_read_packed(layer.layer, bytes.data(), bytes.size(), error), SLUICE_CORRUPT)
        << part;
    EXPECT_NE(error.str().find(part), std::string::npos) << "wanted '" << part << "' in: " << error.str();
    EXPECT_EQ(layer.run(), y) << "the layer keeps its weights: " << part;
  };
  const auto with = [&](const std::string& was, const std::string& now) {
    std::string text(good.begin(), good.end());
    const size_t at = text.find(was);
    EXPECT_NE(at, std::string::npos) << was;
    text.replace(at, was.size(), now);
    return std::vector<char>(text.begin(), text.end());
  };
  refused(std::vector<char>(3), "bytes");
  refused(std::vector<char>(good.begin(), good.end() - 1), "the file is truncated");
  refused(with("limit=7", "limit=9"), "config: wanted limit=7, found limit=9");
  refused(with("layout=panels16 ", "layout=fragments"),
          "config: wanted layout=panels16, found layout=fragments");
  // A file that is older than a field loads if the layer has the field's default.
  const std::string newer = "expert_lora_rank=0 ";
  const std::vector<char> older = with(newer, std::string(newer.size(), ' '));
  EXPECT_EQ(sluice_layer_read_packed(layer.layer, older.data(), older.size(), error), SLUICE_OK)
      << error.str();
  refused(with("\"sluice.packed\":\"2\"", "\"sluice.packed\":\"3\""), "sluice.packed: wanted 2, found '3'");
  refused(with("\"sluice.packed\"", "\"sluice.pocket\""), "sluice.packed: wanted 2, found none");
  refused(with("\"router_bias\"", "\"router_vias\""), "wanted router_bias");
  for (const double place : {.2, .5, .9}) {
    std::vector<char> bytes = good;
    bytes[static_cast<size_t>(place * static_cast<double>(bytes.size()))] ^= 4;
    refused(bytes, "hash: wanted");
  }
  std::vector<char> bytes = good;
  bytes[bytes.size() - 90] ^= 1;  // a byte of the fingerprints
  refused(bytes, "sluice.fingerprints: hash");
  // A layer of another size.
  MoeConfig wider = moe.config;
  wider.hidden += 32;
  const RandomMoe other(wider, 5);
  CapiLayer another(device, wider);
  const CallersTensors others(other.tensors(MoeNaming::kGptOss, 0));
  ASSERT_EQ(another.load(others, error), SLUICE_OK) << error.str();
  refused(packed(another), "config: wanted hidden=96, found hidden=128");
}

TEST(CapiLayers, RunsAllocateNothingAndAreRecorded) {
  const CapiDevice device;
  const RandomMoe moe(small_config(MoeNaming::kDeepSeekV4), 5);
  CapiLayer layer(device, moe.config);
  const CallersTensors tensors(moe.tensors(MoeNaming::kDeepSeekV4, 0));
  Message error;
  ASSERT_EQ(layer.load(tensors, error), SLUICE_OK) << error.str();
  const std::vector<uint16_t> want = layer.run();
  const sluice_launch launch = layer.launch();
  const int64_t start = allocations();
  { const CapiLayer another(device, moe.config); }
  ASSERT_GT(allocations(), start) << "the library's allocations are not counted, so this test cannot fail";
  const int64_t before = allocations();
  const sluice_status ran = sluice_layer_run(layer.layer, &launch, error);
  EXPECT_EQ(allocations(), before);
  EXPECT_EQ(ran, SLUICE_OK) << error.str();

  struct Step {
    const sluice_layer* layer;
    const sluice_launch* launch;
  } step{layer.layer, &launch};
  sluice_recording* recording = nullptr;
  std::fill(layer.y.begin(), layer.y.end(), uint16_t{0});
  ASSERT_EQ(sluice_record(
                device.device, device.stream(),
                [](void* context) {
                  const auto* s = static_cast<const Step*>(context);
                  return sluice_layer_run(s->layer, s->launch, nullptr);
                },
                &step, &recording, error),
            SLUICE_OK)
      << error.str();
  EXPECT_EQ(layer.y, std::vector<uint16_t>(layer.y.size())) << "recording must run nothing";
  ASSERT_EQ(sluice_replay(device.device, recording, device.stream(), error), SLUICE_OK) << error.str();
  EXPECT_EQ(layer.y, want);
  sluice_recording_destroy(recording);
}

TEST(CapiLayers, LayersOfTwoDevicesRunOnThreadsOfTheirOwn) {
  const CapiDevice one(1), two(1);
  const RandomMoe a(small_config(MoeNaming::kGptOss), 5), b(small_config(MoeNaming::kDeepSeekV3), 6);
  CapiLayer first(one, a.config), second(two, b.config), third(one, a.config);
  const CallersTensors of_a(a.tensors(MoeNaming::kGptOss, 0)), of_b(b.tensors(MoeNaming::kDeepSeekV3, 0));
  Message error;
  ASSERT_EQ(first.load(of_a, error), SLUICE_OK) << error.str();
  ASSERT_EQ(second.load(of_b, error), SLUICE_OK) << error.str();
  ASSERT_EQ(third.load(of_a, error), SLUICE_OK) << error.str();
  const std::vector<uint16_t> want_a = first.run(), want_b = second.run();
  bool same_a = true, same_b = true;
  // Both threads start at once and run long enough to overlap on any machine.
  std::latch ready(2);
  const auto repeat = [&ready](const auto& step) {
    ready.arrive_and_wait();
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
    do step();
    while (std::chrono::steady_clock::now() < end);
  };
  std::thread left([&] { repeat([&] { same_a &= first.run() == want_a && third.run() == want_a; }); });
  std::thread right([&] { repeat([&] { same_b &= second.run() == want_b; }); });
  left.join(), right.join();
  EXPECT_TRUE(same_a && same_b);
}

}  // namespace
}  // namespace sluice::test
