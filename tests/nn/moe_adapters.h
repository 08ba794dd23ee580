// LoRA adapters on the experts of a layer. One suite serves all devices; a fixture provides `Device& target()`.
#pragma once
#include <cmath>

#include "harness/moe_features.h"

namespace sluice::test {

template <class Fixture>
class MoeAdaptersOn : public Fixture {};
TYPED_TEST_SUITE_P(MoeAdaptersOn);

inline std::vector<int32_t> adapters_in_turn(int64_t tokens, int64_t adapters) {
  std::vector<int32_t> out;
  for (int64_t t = 0; t < tokens; ++t) out.push_back(static_cast<int32_t>(t % (adapters + 1)) - 1);
  return out;
}

// Every stage agrees with its reference, in layers of several kinds.
TYPED_TEST_P(MoeAdaptersOn, EveryStageAgreesWithItsReference) {
  const char* kinds[] = {
      "expert_lora_rank=8 lora_adapters=3",
      "expert_lora_rank=16 lora_adapters=2 expert_lora_split=1",
      "expert_lora_rank=5 lora_adapters=2 g=f32",
      "expert_lora_rank=8 lora_adapters=2 lora_rank=4",
      "expert_lora_rank=8 lora_adapters=2 per_expert=1",
      "expert_lora_rank=8 lora_adapters=2 residual=1 norm_x=1 norm_y=1 padded=1",
      "expert_lora_rank=8 lora_adapters=2 scope=range expert_begin=4 expert_count=5",
      "expert_lora_rank=8 lora_adapters=2 x_unaligned=1",
      "expert_lora_rank=8 lora_adapters=2 lora_w=f32",
  };
  for (const char* model : {"gpt-oss-120b", "deepseek-v4-flash", "nemotron-3-super"}) {
    for (const char* kind : kinds) {
      MoeConfig config = feature_config(model);
      config.shared_as_slots = false;
      if (config.shared_intermediate) config.shared_intermediate = 64;
      ASSERT_TRUE(parse_fields(kind, &config).ok());
      if (!is_gated(config.act)) config.expert_lora_split = config.per_expert = false;
      if (config.act == Activation::kSwiGlu) config.per_expert = false;
      for (const int64_t tokens : kFeatureTokens) {
        SCOPED_TRACE(std::string(model) + " " + kind + ", " + std::to_string(tokens) + " tokens");
        FeatureLayer layer(this->target(), config, tokens);
        layer.set(layer.io().adapter, adapters_in_turn(tokens, config.lora_adapters));
        if (config.padded)
          layer.set(layer.io().tokens_valid, std::vector<int32_t>{static_cast<int32_t>(tokens)});
        const auto y = layer.run();
        layer.check();
        EXPECT_EQ(layer.run(), y);
        EXPECT_TRUE(runs_alone(layer.moe(), tokens, "experts.up.lora"));
        EXPECT_TRUE(runs_alone(layer.moe(), tokens, "experts.down.lora"));
      }
    }
  }
}

// Gated products of every format are read as ordinary ones.
TYPED_TEST_P(MoeAdaptersOn, WeightsOfEveryFormat) {
  for (const WeightFormat& f : kScaledFormats) {
    for (const int64_t tokens : kFeatureTokens) {
      MoeConfig config = feature_config("deepseek-v3");
      config.shared_intermediate = 0, config.shared_as_slots = false;
      config.expert_w = f.w, config.expert_scales = f.scales;
      config.expert_lora_rank = 8, config.lora_adapters = 3;
      SCOPED_TRACE(text(f) + ", " + std::to_string(tokens) + " tokens");
      FeatureLayer layer(this->target(), config, tokens);
      layer.set(layer.io().adapter, adapters_in_turn(tokens, 3));
      (void)layer.run();
      layer.check();
    }
  }
}

// A token's output changes with its adapter, and only then.
TYPED_TEST_P(MoeAdaptersOn, ChangeTheRowsOfTheirTokens) {
  for (const int64_t tokens : kFeatureTokens) {
    MoeConfig config = feature_config("gpt-oss-120b");
    config.expert_lora_rank = 8, config.lora_adapters = 2;
    FeatureLayer layer(this->target(), config, tokens);
    const auto none = std::vector<int32_t>(static_cast<size_t>(tokens), -1);
    layer.set(layer.io().adapter, none);
    const auto without = layer.run();
    const auto adapter = adapters_in_turn(tokens, 2);
    layer.set(layer.io().adapter, adapter);
    const auto with = layer.run();
    for (int64_t t = 0; t < tokens; ++t) {
      const auto begin = with.begin() + t * config.hidden;
      EXPECT_NE(std::equal(begin, begin + config.hidden, without.begin() + t * config.hidden),
                adapter[static_cast<size_t>(t)] >= 0)
          << "token " << t << " of " << tokens;
    }
    // Without adapters the output equals the layer's output, except for the rounding of the products.
    MoeConfig plain = config;
    plain.expert_lora_rank = plain.lora_adapters = 0;
    FeatureLayer base(this->target(), plain, tokens);
    const auto wanted = base.run();
    double off = 0, all = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double a = to_float(BF16{without[i]}), b = to_float(BF16{wanted[i]});
      off += (a - b) * (a - b), all += b * b;
    }
    EXPECT_LT(std::sqrt(off), 0x1p-6 * std::sqrt(all)) << tokens;
  }
}

TYPED_TEST_P(MoeAdaptersOn, ARecordingFollowsTheAdaptersOfItsTokens) {
  Device& device = this->target();
  MoeConfig config = feature_config("gpt-oss-120b");
  config.expert_lora_rank = 16, config.lora_adapters = 3;
  for (const int64_t tokens : kFeatureTokens) {
    FeatureLayer layer(device, config, tokens);
    const auto recording = device.record(device.stream(), [&] {
      return layer.moe().forward(layer.io(), layer.weights(), layer.workspace(), device.stream());
    });
    ASSERT_TRUE(recording.ok()) << recording.status().message;
    for (const int32_t first : {-1, 0, 2}) {
      auto adapter = adapters_in_turn(tokens, 3);
      adapter[0] = first;
      layer.set(layer.io().adapter, adapter);
      const auto eager = layer.run();
      layer.set(layer.io().y, std::vector<uint16_t>(eager.size(), 0x7FFF));
      ASSERT_TRUE(device.replay(*recording.value(), device.stream()).ok());
      EXPECT_EQ(layer.template get<uint16_t>(layer.io().y), eager);
    }
  }
}

REGISTER_TYPED_TEST_SUITE_P(MoeAdaptersOn, EveryStageAgreesWithItsReference, WeightsOfEveryFormat,
                            ChangeTheRowsOfTheirTokens, ARecordingFollowsTheAdaptersOfItsTokens);

}  // namespace sluice::test
