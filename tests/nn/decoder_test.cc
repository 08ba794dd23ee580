// The weights of a decoder, and the configs and weights that it rejects.
#include "nn/decoder.h"

#include <gtest/gtest.h>

#include "backends/cpu/device.h"
#include "harness/engine_runs.h"
#include "nn/moe/problems.h"

namespace sluice::test {
namespace {

class DecoderOf : public ::testing::Test {
 protected:
  std::string refusal(const DecoderConfig& config) const {
    const auto made =
        Decoder::plan(*device_, config, {.tokens = 8, .sequences = 2, .positions = 32, .pages = 8});
    return made.ok() ? "" : made.status().message;
  }
  std::unique_ptr<Device> device_ = cpu::open_device({.threads = 1}).value();
};

}  // namespace

TEST_F(DecoderOf, WeightsAreListedByLayerAndName) {
  DecoderConfig config = small_decoder();
  config.layers[2].mlp = dense_mlp(64, 96);
  std::vector<std::string> of_first, of_last;
  for (const HeldSlot& held : decoder_weights(config)) {
    if (held.layer == 0) of_first.push_back(held.name);
    if (held.layer == 2) of_last.push_back(held.name);
    EXPECT_TRUE(held.spec.used && held.spec.rank > 0) << held.text();
  }
  const std::vector<std::string> attention = {"attention.norm",  "attention.qkv", "attention.qkv_bias",
                                              "attention.sinks", "attention.o",   "attention.o_bias",
                                              "mlp.norm"};
  std::vector<std::string> wanted = attention;
  for (const char* name : {"router", "router_bias", "experts.up", "experts.up_scale", "experts.up_bias",
                           "experts.down", "experts.down_scale", "experts.down_bias"})
    wanted.push_back(name);
  EXPECT_EQ(of_first, wanted);
  wanted = attention;
  wanted.push_back("experts.up"), wanted.push_back("experts.down");
  EXPECT_EQ(of_last, wanted) << "a layer with a dense MLP";
}

TEST_F(DecoderOf, WeightsThatAreMissingOrOfAnotherShapeAreRefusedByName) {
  DecoderModel model(small_decoder());
  const auto decoder =
      Decoder::plan(*device_, model.config, {.tokens = 8, .sequences = 2, .positions = 32, .pages = 8});
  ASSERT_TRUE(decoder.ok()) << decoder.status().message;
  std::vector<std::byte> memory(static_cast<size_t>(decoder.value()->cache_bytes()));
  const auto caches = decoder.value()->caches(memory.data());
  EXPECT_TRUE(decoder.value()->bind(model.weights, caches).ok());
  const auto error = [&](int64_t layer, const char* name, const Tensor& tensor) {
    NamedWeights changed = model.weights;
    changed.set(layer, name, tensor);
    return decoder.value()->bind(changed, caches).status().message;
  };
  EXPECT_EQ(error(1, "attention.o_bias", {}),
            "decoder: layer 1 attention.o_bias: wanted a tensor, found none");
  EXPECT_EQ(error(-1, "lm_head", {}), "decoder: lm_head: wanted a tensor, found none");
  EXPECT_EQ(error(-1, "final_norm", model.weights(-1, "embedding")),
            "decoder: final_norm: rank: wanted bf16[64], found bf16[101, 64]");
  EXPECT_EQ(decoder.value()->bind(model.weights, {caches[0]}).status().message,
            "decoder: wanted caches of 3 layers, found 1");
}

TEST_F(DecoderOf, IncompatibleLayersAreRefused) {
  const auto changed = [&](auto change) {
    DecoderConfig config = small_decoder();
    change(config);
    return refusal(config);
  };
  EXPECT_EQ(changed([](DecoderConfig& c) { c.layers.clear(); }),
            "decoder: wanted at least one layer, found none");
  EXPECT_EQ(changed([](DecoderConfig& c) {
              for (LayerConfig& layer : c.layers) layer.mlp = dense_mlp(64, 96);
            }),
            "decoder: wanted at least one MoE layer, found only dense layers");
  EXPECT_EQ(changed([](DecoderConfig& c) { c.layers[2].mlp.top_k = 2; }),
            "decoder: layer 2: mlp.top_k: wanted 3, the value of the first MoE layer, found 2");
  EXPECT_EQ(changed([](DecoderConfig& c) { c.layers[1].attention.rotary = 8; }),
            "decoder: layer 1: attention.rotary: wanted 16, the value of layer 0, found 8");
  EXPECT_EQ(changed([](DecoderConfig& c) { c.layers[1].mlp.intermediate = 64; }), "");
}

TEST(MoeDense, IsTwoProductsAndNothingElse) {
  MoeConfig c = dense_mlp(64, 96);
  EXPECT_TRUE(check_moe(c).ok()) << check_moe(c).message;
  const auto error = [&](auto change) {
    MoeConfig other = c;
    change(other);
    return check_moe(other).message;
  };
  const std::string why = " in a dense MLP (dense=1), which is one expert without a router, found ";
  EXPECT_EQ(error([](MoeConfig& m) { m.experts = 2; }), "experts: wanted 1" + why + "2");
  EXPECT_EQ(error([](MoeConfig& m) { m.shared_intermediate = 32; }),
            "shared_intermediate: wanted 0" + why + "32");
  EXPECT_EQ(error([](MoeConfig& m) { m.capture = true; }), "capture: wanted 0" + why + "1");
  EXPECT_FALSE(has_router(c));
}

}  // namespace sluice::test
