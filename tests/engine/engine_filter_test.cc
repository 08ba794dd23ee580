// Token filters in whole engines.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "harness/devices.h"
#include "harness/engine_runs.h"
#include "harness/far_model.h"
#include "harness/sum_filter.h"

namespace sluice::test {
namespace {

class EngineFilter : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = cpu::open_device({.threads = 2}).value();
  DecoderModel model_{small_decoder()};
  std::map<int64_t, Answer> answers(const EngineOptions& options) {
    const Filtered filtered = filtered_requests();
    auto out = run(*engine_of(*device_, model_, options), filtered.requests);
    for (size_t i = 0; i < filtered.moduli.size(); ++i)
      if (filtered.moduli[i] > 0) expect_kept(out.at(static_cast<int64_t>(i)).ids, filtered.moduli[i]);
    return out;
  }
};

TEST_F(EngineFilter, HoldsInBatchesAndAlone) {
  const auto together = answers(invariant());
  const Filtered filtered = filtered_requests();
  for (size_t i = 0; i < filtered.requests.size(); ++i) {
    const auto alone = run(*engine_of(*device_, model_, invariant()), {filtered.requests[i]});
    EXPECT_EQ(alone.at(0), together.at(static_cast<int64_t>(i))) << i;
  }
}

TEST_F(EngineFilter, ChangesNoOtherRequest) {
  const auto with = answers(invariant());
  const auto without = run(*engine_of(*device_, model_, invariant()), adjusted_requests());
  const Filtered filtered = filtered_requests();
  for (size_t i = 0; i < filtered.moduli.size(); ++i) {
    const auto id = static_cast<int64_t>(i);
    EXPECT_EQ(with.at(id) == without.at(id), filtered.moduli[i] == 0) << i;
  }
}

// Under greedy sampling, the token is the allowed one with the largest logit; otherwise it is sampled from
// the allowed tokens. Its logprob is computed from the unfiltered logits.
TEST_F(EngineFilter, TakesTheLikeliestAllowedToken) {
  Request r{.prompt = {9, 8, 7}};
  r.sampling.temperature = 0, r.sampling.max_tokens = 30, r.sampling.logprobs = kTopLogprobsMax;
  r.filter = std::make_shared<SumFilter>(2);
  const Answer answer = run(*engine_of(*device_, model_, invariant()), {r}).at(0);
  SumFilter filter(2);
  int below = 0;
  for (size_t i = 0; i < answer.ids.size(); ++i) {
    for (const TokenLogprob& t : answer.tops[i]) {
      if (!filter.may_come(t.id)) continue;
      EXPECT_EQ(t, (TokenLogprob{answer.ids[i], answer.logprobs[i]})) << i;
      break;
    }
    below += answer.ranks[i] > 1;
    EXPECT_TRUE(std::isfinite(answer.logprobs[i]));
    EXPECT_TRUE(filter.accept(answer.ids[i], {}).ok());
  }
  EXPECT_GT(below, 0);
  for (const double temperature : {0.3, 1.0, 1.9})
    for (const int64_t top_k : {0, 1, 40}) {
      r.sampling.temperature = temperature, r.sampling.top_k = top_k, r.sampling.top_p = 0.9;
      r.sampling.logit_bias = {{13, 100.f}, {14, -100.f}};
      r.filter = std::make_shared<SumFilter>(4);
      expect_kept(run(*engine_of(*device_, model_, roomy()), {r}).at(0).ids, 4);
    }
}

TEST_F(EngineFilter, OutlivesPreemption) {
  EngineOptions tight = invariant();
  tight.max_model_len = 64;
  const auto want = answers(tight);
  tight.kv_cache_bytes = bytes_of_pages(model_.config, tight.page_size, 32);
  const auto engine = engine_of(*device_, model_, tight);
  EXPECT_EQ(run(*engine, filtered_requests().requests), want);
  EXPECT_GT(engine->scheduler().preemptions(), 0);
}

TEST_F(EngineFilter, StartsAnewAfterAPrefixCacheHit) {
  const auto want = answers(invariant());
  const auto engine = engine_of(*device_, model_, invariant());
  (void)run(*engine, filtered_requests().requests);
  const auto again = run(*engine, filtered_requests().requests);
  EXPECT_GT(engine->scheduler().prefix_cache().hits, 0);
  for (const auto& [id, answer] : want) EXPECT_EQ(again.at(id + std::ssize(want)), answer) << id;
}

void expect_heard(const Filtered& filtered, const std::map<int64_t, Answer>& answers) {
  for (size_t i = 0; i < filtered.moduli.size(); ++i) {
    if (filtered.moduli[i] == 0) continue;
    std::vector<int32_t> heard = answers.at(static_cast<int64_t>(i)).ids;
    heard.pop_back();  // no mask is needed after the last token
    EXPECT_EQ(static_cast<const SumFilter&>(*filtered.requests[i].filter).accepted(), heard) << i;
  }
}

TEST_F(EngineFilter, HearsEachTokenOnceWhereStepsRunAhead) {
  EngineOptions ahead = invariant();
  ahead.steps_ahead = 1, ahead.recorded_sequences = 8;
  const Filtered filtered = filtered_requests();
  const auto got = run(*engine_of(*device_, model_, ahead), filtered.requests);
  EXPECT_EQ(got, answers(invariant()));
  expect_heard(filtered, got);
}

TEST(EngineFilterFar, RunsOnADeviceWithMemoryOfItsOwn) {
  FarModel far;
  const auto wanted = run(*far.plain_engine(), filtered_requests().requests);
  ASSERT_EQ(wanted.size(), filtered_requests().requests.size());
  const Filtered filtered = filtered_requests();
  EXPECT_EQ(run(*far.engine(invariant()), filtered.requests), wanted);
  expect_heard(filtered, wanted);
}

TEST_F(EngineFilter, LeavesWithACancelledRequest) {
  auto engine = engine_of(*device_, model_, roomy());
  Request r{.prompt = {1, 2, 3}};
  r.sampling.max_tokens = 50;
  r.filter = std::make_shared<SumFilter>(3);
  const std::weak_ptr<TokenFilter> filter = r.filter;
  const int64_t id = engine->add(std::move(r)).value();
  ASSERT_TRUE(engine->step().ok());
  EXPECT_FALSE(filter.expired());
  engine->cancel(id);
  EXPECT_TRUE(engine->idle());
  engine.reset();  // waits for the mask in progress
  EXPECT_TRUE(filter.expired());
}

}  // namespace
}  // namespace sluice::test
