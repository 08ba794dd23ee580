// A layer's weights in the caller's memory, sizes before a layer exists, and descriptions without a device.
#include "capi/layer.h"
#include "capi/shared_moes.h"

namespace sluice::test {
namespace {

// Memory between guard bytes that must not be written.
struct Fenced {
  explicit Fenced(size_t count) : all(count + 3 * kFence, std::byte{0xA5}), bytes(count) {
    at = all.data() + kFence;
    at += (256 - reinterpret_cast<uintptr_t>(at) % 256) % 256;
  }
  bool whole() const {
    for (const std::byte* p = all.data(); p < all.data() + all.size(); ++p)
      if ((p < at || p >= at + bytes) && *p != std::byte{0xA5}) return false;
    return true;
  }
  static constexpr size_t kFence = 256;
  std::vector<std::byte> all;
  std::byte* at;
  size_t bytes;
};

class CapiLayerMemory : public ::testing::Test {
 protected:
  CapiLayerMemory()
      : moe_(small_config(MoeNaming::kGptOss), 5), tensors_(moe_.tensors(MoeNaming::kGptOss, 0)) {
    fields_ = fields_text(moe_.config);
    options_.fields = fields_.c_str();
    options_.tokens_max = CapiLayer::kTokens;
  }
  sluice_status create() { return sluice_layer_create(device_.device, &options_, &layer_, error_); }
  void TearDown() override { sluice_layer_destroy(layer_); }
  CapiDevice device_;
  RandomMoe moe_;
  CallersTensors tensors_;
  std::string fields_;
  sluice_layer_options options_ = SLUICE_LAYER_OPTIONS_INIT;
  sluice_layer* layer_ = nullptr;
  Message error_;
};

TEST_F(CapiLayerMemory, OfTheCallerHoldsTheSameBitsAndItsGuardsStay) {
  CapiLayer own(device_, moe_.config);
  ASSERT_EQ(own.load(tensors_, error_), SLUICE_OK) << error_.str();
  const std::vector<uint16_t> want = own.run();

  size_t weights = 0, workspace = 0;
  ASSERT_EQ(sluice_layer_measure(device_.device, &options_, &weights, &workspace, error_), SLUICE_OK)
      << error_.str();
  EXPECT_EQ(weights, sluice_layer_weight_bytes(own.layer));
  EXPECT_EQ(workspace, sluice_layer_workspace_bytes(own.layer));
  Fenced memory(weights);
  options_.weights = memory.at, options_.weights_bytes = weights;
  ASSERT_EQ(create(), SLUICE_OK) << error_.str();
  std::swap(own.layer, layer_);  // the same tensors and workspace
  ASSERT_EQ(own.load(tensors_, error_), SLUICE_OK) << error_.str();
  EXPECT_EQ(own.run(), want);
  EXPECT_TRUE(memory.whole());
  EXPECT_GT(std::count_if(memory.at, memory.at + weights, [](std::byte b) { return b != std::byte{0xA5}; }),
            static_cast<std::ptrdiff_t>(weights / 2));
  // The caller's memory is overwritten and restored: the layer runs on what the memory holds.
  const std::vector<std::byte> kept(memory.at, memory.at + weights);
  std::fill(memory.at, memory.at + weights, std::byte{0});
  EXPECT_NE(own.run(), want);
  std::copy(kept.begin(), kept.end(), memory.at);
  EXPECT_EQ(own.run(), want);
}

TEST_F(CapiLayerMemory, ThatDoesNotFitIsRefused) {
  size_t weights = 0;
  ASSERT_EQ(sluice_layer_measure(device_.device, &options_, &weights, nullptr, error_), SLUICE_OK);
  Fenced memory(weights);
  options_.weights = memory.at, options_.weights_bytes = weights - 1;
  EXPECT_EQ(create(), SLUICE_INVALID_ARGUMENT);
  EXPECT_NE(
      error_.str().find("wanted " + std::to_string(weights) + " bytes, found " + std::to_string(weights - 1)),
      std::string::npos)
      << error_.str();
  options_.weights = memory.at + 16, options_.weights_bytes = weights;
  EXPECT_EQ(create(), SLUICE_INVALID_ARGUMENT);
  EXPECT_NE(error_.str().find("multiple of 256, found an address 16 bytes past a multiple"),
            std::string::npos)
      << error_.str();
  options_.weights = nullptr;
  EXPECT_EQ(create(), SLUICE_INVALID_ARGUMENT);
  EXPECT_NE(error_.str().find("weights: wanted a pointer"), std::string::npos) << error_.str();
  EXPECT_TRUE(memory.whole());
}

// The options of a program built against a header without the field `weights`.
TEST_F(CapiLayerMemory, OptionsOfTheFirstVersionAreAccepted) {
  options_.size = offsetof(sluice_layer_options, weights);
  options_.weights = reinterpret_cast<void*>(16);  // must not be read
  EXPECT_EQ(create(), SLUICE_OK) << error_.str();
}

TEST_F(CapiLayerMemory, MeasuringRefusesWhatCreatingDoes) {
  options_.tokens_max = 0;
  size_t bytes = 7;
  EXPECT_EQ(sluice_layer_measure(device_.device, &options_, &bytes, nullptr, error_),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(bytes, 7u);
  EXPECT_EQ(sluice_layer_measure(nullptr, &options_, &bytes, nullptr, error_), SLUICE_INVALID_ARGUMENT);
}

struct Answer {
  sluice_status status;
  std::string said;
};
Answer describe(const sluice_layer_question& question, std::initializer_list<int64_t> tokens,
                sluice_text* error) {
  std::vector<char> room(1 << 16);
  sluice_text text{room.data(), room.size(), 0};
  const sluice_status status = sluice_layer_describe(&question, tokens.begin(), tokens.size(), &text, error);
  return {status, room.data()};
}

TEST_F(CapiLayerMemory, ALayerIsDescribedWithoutADevice) {
  sluice_layer_options options = SLUICE_LAYER_OPTIONS_INIT;
  options.model = "gpt-oss-120b", options.tokens_max = 64;
  const Answer h200 = describe({&options, "h200", nullptr}, {1, 64}, error_);
  ASSERT_EQ(h200.status, SLUICE_OK) << error_.str();
  for (const char* part : {"experts=128", "tokens   1\n", "tokens   64\n", "cuda.", "_sm90"})
    EXPECT_NE(h200.said.find(part), std::string::npos) << part << " in " << h200.said;
  EXPECT_EQ(h200.said.find("none: "), std::string::npos) << h200.said;
  EXPECT_EQ(describe({&options, "h200", nullptr}, {65}, error_).status, SLUICE_INVALID_ARGUMENT);
  EXPECT_NE(error_.str().find("tokens[0]: wanted 0 to 64"), std::string::npos) << error_.str();
  EXPECT_EQ(describe({&options, nullptr, nullptr}, {1}, error_).status, SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(describe({&options, "h2000", nullptr}, {1}, error_).status, SLUICE_INVALID_ARGUMENT);
}

// An open device gives the same description, and it describes what a layer on the device runs.
TEST_F(CapiLayerMemory, TheDescriptionIsWhatTheLayerSays) {
  ASSERT_EQ(create(), SLUICE_OK) << error_.str();
  const Answer asked = describe({&options_, nullptr, device_.device}, {1, 5}, error_);
  ASSERT_EQ(asked.status, SLUICE_OK) << error_.str();
  std::vector<char> room(1 << 16);
  sluice_text text{room.data(), room.size(), 0};
  const int64_t tokens[] = {1, 5};
  ASSERT_EQ(sluice_layer_explain(layer_, tokens, 2, &text, error_), SLUICE_OK) << error_.str();
  EXPECT_EQ(asked.said, room.data());
}

// Experts' kernels by name, for decode and for prefill: the description names what is planned.
TEST_F(CapiLayerMemory, KernelsOfTheExpertsByPhase) {
  const auto line = [](const std::string& said, const std::string& tokens) {
    const size_t at = said.find("tokens   " + tokens + "\n");
    EXPECT_NE(at, std::string::npos) << said;
    const size_t end = said.find("tokens   ", at + 1);
    return said.substr(at, end == std::string::npos ? end : end - at);
  };
  options_.backend_decode = "cpu.expert_gemm.panels_f32", options_.backend_prefill = "panels_f32";
  options_.decode_tokens = 3;
  const Answer asked = describe({&options_, nullptr, device_.device}, {3, 4}, error_);
  ASSERT_EQ(asked.status, SLUICE_OK) << error_.str();
  EXPECT_NE(line(asked.said, "3").find("cpu.expert_gemm.panels_f32"), std::string::npos) << asked.said;
  EXPECT_NE(line(asked.said, "4").find("cpu.expert_gemm.panels_f32"), std::string::npos) << asked.said;
  size_t bytes = 0;
  EXPECT_EQ(sluice_layer_measure(device_.device, &options_, nullptr, &bytes, error_), SLUICE_OK);
  ASSERT_EQ(create(), SLUICE_OK) << error_.str();
  EXPECT_EQ(sluice_layer_workspace_bytes(layer_), bytes);
  std::vector<char> room(1 << 16);
  sluice_text text{room.data(), room.size(), 0};
  const int64_t tokens[] = {3, 4};
  ASSERT_EQ(sluice_layer_explain(layer_, tokens, 2, &text, error_), SLUICE_OK) << error_.str();
  EXPECT_EQ(asked.said, room.data());
  // By default, decode ends at 64 tokens.
  options_.decode_tokens = 0, options_.tokens_max = 65, options_.backend_prefill = "dot";
  EXPECT_EQ(describe({&options_, nullptr, device_.device}, {64, 65}, error_).status, SLUICE_UNSUPPORTED);
  EXPECT_NE(error_.str().find("layout row_major"), std::string::npos) << error_.str();
  options_.tokens_max = 64;  // so no prefill kernel is needed
  EXPECT_EQ(describe({&options_, nullptr, device_.device}, {64}, error_).status, SLUICE_OK) << error_.str();
}

// Planning for many tokens dominates the creation of a layer, so a second equal layer reuses the first one's
// plan.
TEST(SharedMoes, LayersThatAreAlikeShareOnePlan) {
  const auto device = cpu::open_device({.threads = 1}).value();
  capi::SharedMoes moes;
  const MoeConfig config = small_config(MoeNaming::kGptOss);
  const auto get = [&](const MoeConfig& c, int64_t tokens_max, const Policy& policy,
                       const MoeBackend& backend) {
    auto moe = moes.get(*device, c, tokens_max, policy, backend);
    EXPECT_TRUE(moe.ok()) << moe.status().message;
    return std::move(moe).value();
  };
  const auto first = get(config, 64, {}, {});
  EXPECT_EQ(get(config, 64, {}, {}), first);
  MoeConfig narrow = config;
  narrow.intermediate -= 32;
  const auto other = get(narrow, 64, {}, {});
  EXPECT_EQ(other->config().intermediate, narrow.intermediate);
  EXPECT_NE(get(config, 63, {}, {}), first);
  EXPECT_NE(get(config, 64, {.batch_invariant = true}, {}), first);
  EXPECT_NE(get(config, 64, {}, {.decode_tokens = 8}), first);
  EXPECT_EQ(get(narrow, 64, {}, {}), other);
  EXPECT_EQ(get(config, 64, {}, {}), first);
  EXPECT_FALSE(moes.get(*device, config, 0, {}, {}).ok());
}

TEST_F(CapiLayerMemory, AStageWithoutAKernelIsAnErrorWithItsReasons) {
  const sluice_policy mxfp4{"cuda.expert_gemm.mxfp4_tile_sm90", 0};
  sluice_layer_options options = SLUICE_LAYER_OPTIONS_INIT;
  options.fields = "hidden=96 intermediate=64 experts=4 top_k=2 expert_w=bf16 act=silu";
  options.policy = &mxfp4;
  const Answer refused = describe({&options, "h200", nullptr}, {1}, error_);
  EXPECT_EQ(refused.status, SLUICE_UNSUPPORTED);
  EXPECT_NE(error_.str().find("cuda.expert_gemm.mxfp4_tile_sm90"), std::string::npos) << error_.str();
  EXPECT_NE(error_.str().find("w=bf16"), std::string::npos) << error_.str();
}

}  // namespace
}  // namespace sluice::test
