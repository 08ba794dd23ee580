// The small models of tests/data/qwen3_moe and tests/data/deepseek_v3, with names such as "qwen3_moe/yarn",
// and the distance of their logits from the recorded logits (tools/parity/record_qwen3_moe.py,
// record_deepseek_v3.py).
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "harness/recorded_logits.h"
#include "models/load.h"

namespace sluice::test {

inline Recorded recorded_model(const std::string& model_name) {
  const auto file = Checkpoint::open(test_data(model_name + ".safetensors"));
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

struct FamilyParity {
  FamilyParity(Device& device, const std::string& model_name, DType x, const Policy& policy = {},
               Device* experts = nullptr) {
    auto loaded = LoadedModel::load(device, test_data(model_name), {.x = x, .experts = experts});
    EXPECT_TRUE(loaded.ok()) << loaded.status().message;
    if (!loaded.ok()) return;
    model = std::move(loaded).value();
    // Prompts are split into chunks of 9 tokens, which cross pages.
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

inline void expect_within(const FamilyParity& m, const std::string& model_name, double noise_scale,
                          double rms_allowed, double max_allowed) {
  const Recorded r = recorded_model(model_name);
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
  EXPECT_LE(worst.rms, rms_allowed) << model_name;
  EXPECT_LE(worst.most, max_allowed) << model_name;
  testing::Test::RecordProperty("rms", std::to_string(worst.rms));
  testing::Test::RecordProperty("most", std::to_string(worst.most));
}

}  // namespace sluice::test
