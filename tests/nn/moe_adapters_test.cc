// Adapters on the experts, on this machine and on a device whose memory the host cannot access.
#include "nn/moe_adapters.h"

#include "harness/far_device.h"
#include "harness/moe_files.h"

namespace sluice::test {

class AdaptersHere : public testing::Test {
 protected:
  Device& target() { return *device_; }

 private:
  std::unique_ptr<Device> device_ = cpu::open_device({.threads = 2}).value();
};
class AdaptersFar : public testing::Test {
 protected:
  Device& target() { return device_; }

 private:
  FarDevice device_;
};
INSTANTIATE_TYPED_TEST_SUITE_P(Cpu, MoeAdaptersOn, AdaptersHere);
INSTANTIATE_TYPED_TEST_SUITE_P(Far, MoeAdaptersOn, AdaptersFar);

namespace {

TEST(MoeAdapters, ContradictionsAreRefusedByName) {
  const auto message = [&](const char* model, const char* fields) {
    MoeConfig config = feature_config(model);
    EXPECT_TRUE(parse_fields(fields, &config).ok());
    return check_moe(config).message;
  };
  EXPECT_EQ(message("gpt-oss-120b", "expert_lora_rank=4"),
            "expert_lora_rank and lora_adapters: wanted both above 0 or neither, found 4 and 0");
  EXPECT_EQ(message("gpt-oss-120b", "expert_lora_split=1"),
            "expert_lora_split: wanted 0 without adapters on the experts or without a gate, found 1");
  EXPECT_EQ(
      message("deepseek-v3", "expert_lora_rank=4 lora_adapters=1 shared_as_slots=1 shared_intermediate=128"),
      "expert_lora_rank: wanted 0 with shared_as_slots, because shared experts have no adapters, found 4");
  EXPECT_EQ(message("gpt-oss-120b", "expert_lora_rank=4 lora_adapters=1 weight_on_input=1"),
            "expert_lora_rank: wanted 0 with weight_on_input, because the adapters read unweighted inputs, "
            "found 4");
  EXPECT_NE(message("gpt-oss-120b", "expert_lora_rank=1025 lora_adapters=1")
                .find("expert_lora_rank: wanted 0 to 1024"),
            std::string::npos);
}

// One adapter's tensors in host memory, for a layer of small_config().
struct AdapterTensors {
  explicit AdapterTensors(const MoeConfig& config, uint64_t seed = 4) {
    Random random(seed);
    const int64_t e = config.experts, r = config.expert_lora_rank,
                  inner = config.expert_lora_split ? 2 * r : r;
    add("experts.up_lora_a", {e, inner, config.hidden}, random);
    add("experts.up_lora_b", {e, 2 * config.intermediate, r}, random);
    add("experts.down_lora_a", {e, r, config.intermediate}, random);
    add("experts.down_lora_b", {e, config.hidden, r}, random);
    scale = 0.5f;
    list.push_back({.name = "experts.lora_scale",
                    .type = StoredType::kF32,
                    .shape = {1},
                    .data = reinterpret_cast<const std::byte*>(&scale),
                    .bytes = 4});
  }
  void add(const char* name, std::vector<int64_t> shape, Random& random) {
    auto values =
        std::make_unique<std::vector<uint16_t>>(static_cast<size_t>(shape[0] * shape[1] * shape[2]));
    for (uint16_t& v : *values) v = to_bf16(static_cast<float>(random.normal())).bits;
    list.push_back({.name = name,
                    .type = StoredType::kBF16,
                    .shape = std::move(shape),
                    .data = reinterpret_cast<const std::byte*>(values->data()),
                    .bytes = static_cast<int64_t>(values->size() * 2)});
    memory.push_back(std::move(values));
  }
  std::unique_ptr<Checkpoint> checkpoint() const { return Checkpoint::of_memory("weights", list).value(); }
  std::vector<CheckpointTensor> list;
  std::vector<std::unique_ptr<std::vector<uint16_t>>> memory;
  float scale;
};

MoeConfig adapted_config() {
  MoeConfig config = small_config(MoeNaming::kGptOss);
  config.expert_lora_rank = 4, config.lora_adapters = 3;
  return config;
}

// Each element of a rank's adapter is the element of the whole adapter with the rank's expert, row and column.
TEST(MoeAdapters, AReplacedAdapterIsThisRanksPartAndOthersStay) {
  const auto device = cpu::open_device({.threads = 1}).value();
  {
    for (const Slice& slice :
         {Slice{}, Slice{.tp_rank = 1, .tp_size = 2}, Slice{.ep_rank = 1, .ep_size = 2}}) {
      const MoeConfig config = adapted_config();
      const RandomMoe moe(config, 5);
      const Written file(moe.tensors(MoeNaming::kGptOss, 0));
      const auto loaded = load_moe(*device, *file.checkpoint, config, {.slice = slice});
      ASSERT_TRUE(loaded.ok()) << loaded.status().message;
      const AdapterTensors tensors(config);
      const Status replaced = loaded.value()->replace_adapter(*tensors.checkpoint(), 1);
      ASSERT_TRUE(replaced.ok()) << replaced.message;
      const auto& to = loaded.value()->weights().expert_adapters;
      const MoeConfig& local = loaded.value()->config();
      const int64_t first_expert = local.scope == ExpertScope::kRange ? local.expert_begin : 0;
      const int64_t first = slice.tp_rank * (config.intermediate - local.intermediate);
      const auto whole = [&](size_t tensor, int64_t e, int64_t row, int64_t column) {
        const auto& shape = tensors.list[tensor].shape;
        return to_float(BF16{(*tensors.memory[tensor])[static_cast<size_t>(
            ((first_expert + e) * shape[1] + row) * shape[2] + column)]});
      };
      const auto each = [&](const Tensor& t, auto wanted) {
        for (int64_t i = 0; i < t.shape[0]; ++i)
          for (int64_t e = 0; e < t.shape[1]; ++e)
            for (int64_t row = 0; row < t.shape[2]; ++row)
              for (int64_t c = 0; c < t.shape[3]; ++c) {
                const double got = load(t, ((i * t.shape[1] + e) * t.shape[2] + row) * t.shape[3] + c);
                ASSERT_EQ(got, i == 1 ? wanted(e, row, c) : 0.f) << i << " " << e << " " << row << " " << c;
              }
      };
      each(to.up_a, [&](int64_t e, int64_t row, int64_t c) { return whole(0, e, row, c); });
      each(to.up_b, [&](int64_t e, int64_t row, int64_t c) { return whole(1, e, 2 * first + row, c); });
      each(to.down_a, [&](int64_t e, int64_t row, int64_t c) { return whole(2, e, row, first + c); });
      each(to.down_b, [&](int64_t e, int64_t row, int64_t c) { return whole(3, e, row, c); });
      EXPECT_EQ(load(to.scale, 1), 0.5);
      EXPECT_EQ(load(to.scale, 0), 0);
    }
  }
}

TEST(MoeAdapters, BadAdaptersAreRefusedAndNothingIsWritten) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const MoeConfig config = adapted_config();
  const RandomMoe moe(config, 5);
  const Written file(moe.tensors(MoeNaming::kGptOss, 0));
  const auto loaded = load_moe(*device, *file.checkpoint, config, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message;
  const auto message = [&](auto change, int64_t adapter = 0) {
    AdapterTensors tensors(config);
    change(tensors);
    const Status status = loaded.value()->replace_adapter(*tensors.checkpoint(), adapter);
    EXPECT_FALSE(status.ok());
    return status.message;
  };
  EXPECT_EQ(message([](AdapterTensors&) {}, 3), "layer 0: adapter: wanted 0 to 2, found 3");
  EXPECT_EQ(message([](AdapterTensors&) {}, -1), "layer 0: adapter: wanted 0 to 2, found -1");
  EXPECT_NE(message([](AdapterTensors& t) { t.list.erase(t.list.begin()); }).find("experts.up_lora_a"),
            std::string::npos);
  EXPECT_NE(message([](AdapterTensors& t) {
              std::swap(t.list[2].shape[1], t.list[2].shape[2]);
            }).find("experts.down_lora_a"),
            std::string::npos);
  EXPECT_NE(message([](AdapterTensors& t) { (*t.memory[3])[7] = 0x7FC0; }).find("experts.down_lora_b"),
            std::string::npos);
  const Tensor& a = loaded.value()->weights().expert_adapters.up_a;
  for (int64_t i = 0; i < elements_of(a); ++i) ASSERT_EQ(load(a, i), 0);

  MoeConfig none = small_config(MoeNaming::kGptOss);
  const auto plain = load_moe(*device, *file.checkpoint, none, {});
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain.value()->replace_adapter(*AdapterTensors(config).checkpoint(), 0).message,
            "layer 0: adapter: wanted a layer with adapters (lora_adapters above 0), found lora_adapters=0");
}

}  // namespace
}  // namespace sluice::test
