// Log probabilities of a prompt's tokens (SamplingParams::prompt_logprobs) through whole engines.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "harness/devices.h"
#include "harness/engine_runs.h"
#include "harness/far_model.h"
#include "harness/wrapped_device.h"

namespace sluice::test {
namespace {

using Scores = std::vector<TokenScore>;

// Of each request, with its first token; faults are tried again.
std::map<int64_t, Scores> scores_of(Engine& engine, const std::vector<Request>& requests) {
  for (const Request& r : requests) EXPECT_TRUE(engine.add(r).ok());
  std::map<int64_t, Scores> out;
  for (int steps = 0; !engine.idle() && steps < 20000; ++steps) {
    const auto tokens = engine.step();
    if (!tokens.ok()) continue;
    for (const GeneratedToken& t : tokens.value()) {
      EXPECT_TRUE(!out.contains(t.request) || t.prompt.empty()) << "scores with a later token";
      if (!out.contains(t.request)) out[t.request] = t.prompt;
      EXPECT_EQ(t.cached_tokens, 0) << "a prompt that is scored is computed";
    }
  }
  EXPECT_TRUE(engine.idle());
  return out;
}

// All of some_requests() ask: one of them for no likeliest tokens, one has a prompt of one token.
std::vector<Request> scored_requests() {
  std::vector<Request> out = some_requests();
  for (size_t i = 0; i < out.size(); ++i) out[i].sampling.prompt_logprobs = static_cast<int64_t>(i) % 4;
  return out;
}

class EngineScores : public ::testing::Test {
 protected:
  void expect_the_same(const std::map<int64_t, Scores>& got, const std::string& why) {
    ASSERT_EQ(got.size(), wanted_.size()) << why;
    for (const auto& [id, scores] : wanted_) EXPECT_EQ(got.at(id), scores) << why << ": request " << id;
  }
  std::unique_ptr<Device> device_ = cpu::open_device({.threads = 2}).value();
  DecoderModel model_{small_decoder()};
  std::map<int64_t, Scores> wanted_ = scores_of(*engine_of(*device_, model_, invariant()), scored_requests());
};

TEST_F(EngineScores, AreThoseOfTheLogits) {
  const auto requests = scored_requests();
  const auto engine = engine_of(*device_, model_, invariant());
  for (size_t r = 0; r < requests.size(); ++r) {
    const std::vector<int32_t>& prompt = requests[r].prompt;
    const Scores& scores = wanted_.at(static_cast<int64_t>(r));
    ASSERT_EQ(scores.size(), prompt.size() - 1);
    std::vector<int64_t> positions(scores.size());
    std::iota(positions.begin(), positions.end(), 0);
    const auto logits = engine->logits(prompt, positions).value();
    for (size_t i = 0; i < scores.size(); ++i) {
      const float* x = logits.data() + static_cast<int64_t>(i) * kSmallVocab;
      const double largest = *std::max_element(x, x + kSmallVocab);
      double sum = 0;
      for (int64_t v = 0; v < kSmallVocab; ++v) sum += std::exp(static_cast<double>(x[v]) - largest);
      const auto logprob = [&](int32_t id) { return static_cast<double>(x[id]) - largest - std::log(sum); };
      const double want = logprob(prompt[i + 1]);
      EXPECT_NEAR(scores[i].logprob, want, 0x1p-18 * (1 + std::abs(want))) << r << ", token " << i + 1;
      std::vector<int32_t> order(kSmallVocab);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return x[a] > x[b]; });
      ASSERT_EQ(scores[i].top_logprobs.size(), r % 4);
      for (size_t k = 0; k < r % 4; ++k) EXPECT_EQ(scores[i].top_logprobs[k].id, order[k]) << r << ", " << i;
    }
  }
}

TEST_F(EngineScores, InPiecesAheadAndShortOfPagesAreTheSame) {
  EngineOptions options = invariant();
  options.max_num_seqs = 3;
  expect_the_same(scores_of(*engine_of(*device_, model_, options), scored_requests()), "3 rows of logits");
  options.max_num_batched_tokens = 8;
  expect_the_same(scores_of(*engine_of(*device_, model_, options), scored_requests()), "chunks of 8");
  options.steps_ahead = 1, options.recorded_sequences = 3;
  expect_the_same(scores_of(*engine_of(*device_, model_, options), scored_requests()), "a step ahead");
  options.max_num_seqs = 1, options.max_num_batched_tokens = 1, options.recorded_sequences = 1;
  expect_the_same(scores_of(*engine_of(*device_, model_, options), scored_requests()), "token by token");
  EngineOptions scarce = invariant();
  scarce.steps_ahead = 1, scarce.max_model_len = 64, scarce.max_num_batched_tokens = 8;
  scarce.kv_cache_bytes = bytes_of_pages(model_.config, scarce.page_size, 32);
  const auto engine = engine_of(*device_, model_, scarce);
  expect_the_same(scores_of(*engine, scored_requests()), "one sequence's pages");
  EXPECT_GT(engine->scheduler().preemptions(), 0);
  PoisonedDevice poisoned(*device_);
  options = invariant();
  options.max_num_seqs = 3;
  expect_the_same(scores_of(*engine_of(poisoned, model_, options), scored_requests()), "poisoned memory");
}

TEST_F(EngineScores, AreComputedWhereThePrefixCacheHasThePrompt) {
  const auto engine = engine_of(*device_, model_, invariant());
  expect_the_same(scores_of(*engine, scored_requests()), "the first time");
  EXPECT_EQ(engine->scheduler().prefix_cache().hits, 0);
  const int64_t before = engine->scheduler().prefix_cache().queries;
  std::map<int64_t, Scores> again;
  for (const auto& [id, scores] : scores_of(*engine, scored_requests()))
    again[id - std::ssize(wanted_)] = scores;
  expect_the_same(again, "the second time");
  EXPECT_EQ(engine->scheduler().prefix_cache().hits, 0);
  // The prompt of one token alone has nothing to score, and looks.
  EXPECT_EQ(engine->scheduler().prefix_cache().queries, before + 1);
  Request plain = some_requests()[2];
  (void)run(*engine, {plain});
  EXPECT_EQ(engine->scheduler().prefix_cache().hits, 36) << "others find its pages";
}

TEST_F(EngineScores, ChangeNoAnswer) {
  const auto plain = run(*engine_of(*device_, model_, invariant()), some_requests());
  auto scored = run(*engine_of(*device_, model_, invariant()), scored_requests());
  for (auto& [id, answer] : scored) answer.prompt.clear();
  EXPECT_EQ(scored, plain);
  std::vector<Request> some = some_requests();
  some[2].sampling.prompt_logprobs = 1, some[1].sampling.logprobs = 2;
  const auto got = run(*engine_of(*device_, model_, invariant()), some);
  for (int64_t i = 0; i < std::ssize(some); ++i) EXPECT_EQ(got.at(i).ids, plain.at(i).ids) << i;
}

TEST_F(EngineScores, GoOnAfterAFault) {
  for (const int first : {0, 2, 5}) {
    FailingDevice failing(*device_, first, 2);
    EngineOptions options = invariant();
    options.steps_ahead = 1, options.max_num_batched_tokens = 8;
    expect_the_same(scores_of(*engine_of(failing, model_, options), scored_requests()),
                    "a fault at wait " + std::to_string(first));
  }
}

// Before any token is drawn, so no draw can tell.
TEST_F(EngineScores, OfLogitsThatAreNoNumbersAreAnErrorOfTheirStep) {
  Request r = scored_requests()[2];
  r.sampling.prompt_logprobs = 0;
  model_.weights(-1, "embedding").row<BF16>(r.prompt[9])[0] =
      to_bf16(std::numeric_limits<float>::quiet_NaN());
  EngineOptions options = invariant();
  options.max_num_batched_tokens = 8;
  const auto engine = engine_of(*device_, model_, options);
  ASSERT_TRUE(engine->add(r).ok());
  ASSERT_TRUE(engine->step().ok());
  const auto second = engine->step();
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code, Code::kDevice);
  EXPECT_EQ(second.status().message,
            "step 2: request 0: wanted finite logits, found nan as a logprob of its prompt");
}

TEST(EngineScoresFar, RunOnADeviceWithMemoryOfItsOwn) {
  FarModel far;
  const auto wanted = scores_of(*far.plain_engine(), scored_requests());
  ASSERT_EQ(wanted.at(2).size(), 39u);
  for (const auto& [id, scores] : scores_of(*far.engine(invariant()), scored_requests()))
    EXPECT_EQ(scores, wanted.at(id)) << id;
}

TEST_F(EngineScores, RefusesMoreThanThereAre) {
  Request r{.prompt = {1, 2}};
  r.sampling.prompt_logprobs = 21;
  const auto added = engine_of(*device_, model_, roomy())->add(r);
  ASSERT_FALSE(added.ok());
  EXPECT_EQ(added.status().message, "prompt_logprobs: wanted 0 to 20, found 21");
}

}  // namespace
}  // namespace sluice::test
