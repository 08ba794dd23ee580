// The small Qwen3-MoE models of tests/data/qwen3_moe, and the distance of their logits from the recorded
// logits (tools/parity/record_qwen3_moe.py).
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "harness/recorded_logits.h"
#include "models/load.h"

namespace sluice::test {

inline Recorded recorded_qwen3(const std::string& variant) {
  const auto file = Checkpoint::open(test_data("qwen3_moe/" + variant + ".safetensors"));
  EXPECT_TRUE(file.ok()) << file.status().message;
  if (!file.ok()) return {};
  const auto positions = values<int32_t>(*file.value(), "all.positions");
  return {.ids = values<int32_t>(*file.value(), "all.ids"),
          .greedy = {},
          .positions = {positions.begin(), positions.end()},
          .logits = values<float>(*file.value(), "all.logits"),
          .noise = values<float>(*file.value(), "all.noise"),
          .noise_most = values<float>(*file.value(), "all.noise_most"),
          .gap = {}};
}

struct Qwen3Parity {
  Qwen3Parity(Device& device, const std::string& variant, DType x, const Policy& policy = {},
              Device* experts = nullptr) {
    auto loaded = LoadedModel::load(device, test_data("qwen3_moe/" + variant), {.x = x, .experts = experts});
    EXPECT_TRUE(loaded.ok()) << loaded.status().message;
    if (!loaded.ok()) return;
    model = std::move(loaded).value();
    // Chunks of 9 tokens split a prompt into pieces that cross pages.
    auto made = Engine::make(device, model->config().decoder, model->weights(),
                             {.max_model_len = 64,
                              .max_num_seqs = 4,
                              .max_num_batched_tokens = 9,
                              .page_size = 4,
                              .policy = policy,
                              .experts = {experts}});
    EXPECT_TRUE(made.ok()) << made.status().message;
    if (made.ok()) engine = std::move(made).value();
  }
  std::unique_ptr<LoadedModel> model;
  std::unique_ptr<Engine> engine;
};

inline void expect_within(const Qwen3Parity& m, const std::string& variant, double noise_scale,
                          double rms_allowed, double most_allowed) {
  const Recorded r = recorded_qwen3(variant);
  ASSERT_TRUE(m.engine);
  const auto got = m.engine->logits(r.ids, r.positions);
  ASSERT_TRUE(got.ok()) << got.status().message;
  ASSERT_EQ(got.value().size(), r.logits.size());
  ASSERT_EQ(r.positions.size(), 40u);
  Distance worst;
  for (size_t row = 0; row < r.positions.size(); ++row) {
    const Distance d = distance(r, got.value(), row, noise_scale);
    worst = {std::max(worst.rms, d.rms), std::max(worst.most, d.most)};
  }
  EXPECT_LE(worst.rms, rms_allowed) << variant;
  EXPECT_LE(worst.most, most_allowed) << variant;
  testing::Test::RecordProperty(variant + "_rms", std::to_string(worst.rms));
  testing::Test::RecordProperty(variant + "_most", std::to_string(worst.most));
}

}  // namespace sluice::test
