// The shipped model compared with transformers: logits within the noise of the recorded runs, and the same
// greedy text.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/engine.h"
#include "harness/devices.h"
#include "harness/far_device.h"
#include "harness/model_copy.h"
#include "harness/recorded_logits.h"
#include "models/load.h"
#include "text/tokenizer/tokenizer.h"

namespace sluice::test {
namespace {

struct Loaded {
  explicit Loaded(DType x) : Loaded(x, cpu::open_device({.threads = 2}).value()) {}
  Loaded(DType x, std::unique_ptr<Device> d, std::unique_ptr<Device> e = nullptr)
      : device(std::move(d)), experts(std::move(e)) {
    auto loaded = LoadedModel::load(*device, kShipped, {.x = x, .experts = experts.get()});
    EXPECT_TRUE(loaded.ok()) << loaded.status().message;
    model = std::move(loaded).value();
    // Prompts are computed in chunks of 100 tokens, which cross windows.
    auto made = Engine::make(*device, model->config().decoder, model->weights(),
                             {.max_model_len = 2048,
                              .max_num_seqs = 4,
                              .max_num_batched_tokens = 100,
                              .experts = {experts.get()}});
    EXPECT_TRUE(made.ok()) << made.status().message;
    engine = std::move(made).value();
  }
  std::unique_ptr<Device> device, experts;
  std::unique_ptr<LoadedModel> model;
  std::unique_ptr<Engine> engine;
};

// Checks every row of every prompt and prints the largest errors as shares of the bounds, so that a failure
// shows by how much.
void expect_within(Loaded& m, double noise_scale, double rms_allowed, double max_allowed) {
  const auto file = Checkpoint::open(recorded_file());
  ASSERT_TRUE(file.ok()) << file.status().message;
  for (const char* prompt : kPrompts) {
    const Recorded r = recorded(*file.value(), prompt);
    const auto got = m.engine->logits(r.ids, r.positions);
    ASSERT_TRUE(got.ok()) << got.status().message;
    ASSERT_EQ(got.value().size(), r.logits.size());
    Distance worst;
    for (size_t row = 0; row < r.positions.size(); ++row) {
      const Distance d = distance(r, got.value(), row, noise_scale);
      worst = {std::max(worst.rms, d.rms), std::max(worst.most, d.most)};
    }
    EXPECT_LE(worst.rms, rms_allowed) << prompt;
    EXPECT_LE(worst.most, max_allowed) << prompt;
    testing::Test::RecordProperty(std::string(prompt) + "_rms", std::to_string(worst.rms));
    testing::Test::RecordProperty(std::string(prompt) + "_most", std::to_string(worst.most));
  }
}

}  // namespace

// bf16 rounds every stored value once, as each recorded run did with random rounding, so our error is another
// sample from the distribution of their errors. The root mean square of a row is dominated by a few
// directions, so 4 of its standard deviations are allowed; the maximum may be twice the largest deviation of
// 16 runs.
TEST(Parity, LogitsInBf16AreWithinTheNoiseOfItsRoundings) {
  for (auto& device : every_level(2)) {
    SCOPED_TRACE(text(device->info()));
    Loaded m(DType::kBF16, std::move(device));
    expect_within(m, 1, 4, 2);
  }
}

// Only x, the residual stream and y are copied between the devices.
TEST(Parity, ExpertsOnADeviceOfTheirOwnAreWithinTheSameNoise) {
  Loaded m(DType::kBF16, cpu::open_device({.threads = 2}).value(), std::make_unique<FarDevice>());
  expect_within(m, 1, 4, 2);
}

// f32 rounds 2^16 times finer. The errors of sums remain: a sum of n terms loses about sqrt(n) / 2 roundings
// of its result, 11 for the longest sum here (512), where a bf16 run loses one.
TEST(Parity, LogitsInF32AreWithinTheNoiseOfItsSums) {
  Loaded m(DType::kF32);
  expect_within(m, 0x1p-16, 16, 16);
}

TEST(Parity, GreedyTextIsThatOfTransformers) {
  const auto file = Checkpoint::open(recorded_file());
  ASSERT_TRUE(file.ok()) << file.status().message;
  Loaded m(DType::kBF16);
  const Tokenizer tokenizer = Tokenizer::load(kShipped / "tokenizer.json").value();
  // All prompts are in one batch, so several sequences share steps.
  std::vector<std::vector<int32_t>> answers;
  for (const char* prompt : kPrompts) {
    const Recorded r = recorded(*file.value(), prompt);
    Request request{.prompt = r.ids};
    request.sampling.temperature = 0;
    request.sampling.max_tokens = static_cast<int64_t>(r.greedy.size());
    ASSERT_TRUE(m.engine->add(request).ok());
    answers.emplace_back();
  }
  while (!m.engine->idle()) {
    const auto tokens = m.engine->step();
    ASSERT_TRUE(tokens.ok()) << tokens.status().message;
    for (const GeneratedToken& t : tokens.value()) answers[static_cast<size_t>(t.request)].push_back(t.id);
  }
  size_t compared = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    const Recorded r = recorded(*file.value(), kPrompts[i]);
    // If the best logit leads by less than six standard deviations of the noise, another kernel may
    // legitimately choose another token.
    const float sure = 6 * *std::max_element(r.noise.begin(), r.noise.end());
    const auto certain =
        std::find_if(r.gap.begin(), r.gap.end(), [&](float gap) { return gap < sure; }) - r.gap.begin();
    ASSERT_GE(answers[i].size(), static_cast<size_t>(certain)) << kPrompts[i];
    const std::vector<int32_t> got(answers[i].begin(), answers[i].begin() + certain);
    const std::vector<int32_t> want(r.greedy.begin(), r.greedy.begin() + certain);
    EXPECT_EQ(tokenizer.decode(got), tokenizer.decode(want)) << kPrompts[i];
    EXPECT_EQ(got, want) << kPrompts[i];
    compared += got.size();
  }
  EXPECT_GE(compared, 100u);
}

}  // namespace sluice::test
