// Whole engines with drafts give the same bits as engines without.
#include <gtest/gtest.h>

#include "harness/devices.h"
#include "harness/draft_sources.h"
#include "harness/engine_runs.h"
#include "harness/far_model.h"
#include "harness/sum_filter.h"

namespace sluice::test {
namespace {

using Kind = KnownAnswers::Kind;

class EngineSpeculation : public ::testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Device> device_ = cpu::open_device({.threads = 2}).value();
  DecoderModel model_{small_decoder()};
  std::map<int64_t, Answer> plain(const std::vector<Request>& requests) {
    return run(*engine_of(*device_, model_, invariant()), requests);
  }
  // Drafts taken from the expected answers.
  EngineOptions drafting(const std::vector<Request>& requests, const std::map<int64_t, Answer>& answers,
                         int64_t drafts) {
    const auto source = std::make_shared<KnownAnswers>(GetParam(), 101);
    for (size_t i = 0; i < requests.size(); ++i)
      source->learn(requests[i].prompt, answers.at(static_cast<int64_t>(i)).ids);
    EngineOptions out = invariant();
    out.speculation = speculation_of(source, drafts);
    return out;
  }
  void expect_counts(const Engine& engine) {
    const DraftCounts counts = engine.scheduler().draft_counts();
    EXPECT_GT(counts.draft_tokens, 0);
    EXPECT_EQ(counts.accepted == counts.draft_tokens, GetParam() == Kind::kRight);
    EXPECT_EQ(counts.accepted == 0, GetParam() == Kind::kWrong);
  }
};

TEST_P(EngineSpeculation, AnswersAsWithoutDrafts) {
  const auto requests = some_requests();
  const auto wanted = plain(requests);
  for (const int64_t drafts : {1, 3, 7}) {
    EngineOptions options = drafting(requests, wanted, drafts);
    const auto engine = engine_of(*device_, model_, options);
    EXPECT_EQ(run(*engine, requests), wanted) << drafts;
    expect_counts(*engine);
    options.steps_ahead = 1, options.recorded_sequences = 8;
    EXPECT_EQ(run(*engine_of(*device_, model_, options), requests), wanted)
        << drafts << ", ahead and recorded";
  }
}

// Penalties, biases, lists of logprobs and prompt scores, row by row along the drafts.
TEST_P(EngineSpeculation, AdjustsEachRowByTheDraftsBeforeIt) {
  const auto requests = adjusted_requests();
  const auto wanted = plain(requests);
  const auto engine = engine_of(*device_, model_, drafting(requests, wanted, 4));
  EXPECT_EQ(run(*engine, requests), wanted);
  expect_counts(*engine);
}

TEST_P(EngineSpeculation, FiltersEachRowByTheDraftsBeforeIt) {
  const auto wanted = plain(filtered_requests().requests);
  const auto engine = engine_of(*device_, model_, drafting(filtered_requests().requests, wanted, 4));
  const Filtered filtered = filtered_requests();
  EXPECT_EQ(run(*engine, filtered.requests), wanted);
  expect_counts(*engine);
  for (size_t i = 0; i < filtered.moduli.size(); ++i)
    if (filtered.moduli[i] > 0) expect_kept(wanted.at(static_cast<int64_t>(i)).ids, filtered.moduli[i]);
}

// At every position in a run of accepted drafts.
TEST_P(EngineSpeculation, EndsAtStopTokensAndLengths) {
  Request r{.prompt = {3, 1, 4, 1, 5}};
  r.sampling.temperature = 0.9, r.sampling.max_tokens = 24;
  const auto full = plain({r});
  for (size_t end = 1; end < 12; ++end) {
    Request stops = r, is_short = r;
    stops.sampling.stop_token_ids = {full.at(0).ids[end]};
    is_short.sampling.max_tokens = static_cast<int64_t>(end);
    const EngineOptions options = drafting({r}, full, 5);
    EXPECT_EQ(run(*engine_of(*device_, model_, options), {stops}), plain({stops})) << end;
    EXPECT_EQ(run(*engine_of(*device_, model_, options), {is_short}), plain({is_short})) << end;
  }
}

// Three sequences grow in a cache for two: one is preempted while the others have drafts.
TEST_P(EngineSpeculation, ContinuesAfterAPreemption) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 3; ++i) {
    Request r{.prompt = {7 * i, 3, 5, 8}};
    r.sampling.temperature = 0.8, r.sampling.seed = static_cast<uint64_t>(i), r.sampling.max_tokens = 50;
    requests.push_back(r);
  }
  const auto wanted = plain(requests);
  EngineOptions options = drafting(requests, wanted, 6);
  options.max_model_len = 64;
  options.kv_cache_bytes = bytes_of_pages(model_.config, options.page_size, 32);
  const auto engine = engine_of(*device_, model_, options);
  EXPECT_EQ(run(*engine, requests), wanted);
  EXPECT_GT(engine->scheduler().preemptions(), 0);
  EXPECT_EQ(engine->scheduler().free_pages(), 32);
  expect_counts(*engine);
}

TEST_P(EngineSpeculation, OnADeviceWithMemoryOfItsOwn) {
  FarModel far;
  const auto requests = adjusted_requests();
  const auto wanted = run(*far.plain_engine(), requests);
  const auto engine = far.engine(drafting(requests, wanted, 3));
  EXPECT_EQ(run(*engine, requests), wanted);
  expect_counts(*engine);
}

TEST_P(EngineSpeculation, WithOffloadedExperts) {
  const auto requests = adjusted_requests();
  const auto wanted = plain(requests);
  EngineOptions options = drafting(requests, wanted, 3);
  const auto apart = cpu::open_device({.threads = 1}).value();
  options.experts.device = apart.get();
  const auto engine = engine_of(*device_, model_, options);
  EXPECT_EQ(run(*engine, requests), wanted);
  expect_counts(*engine);
}

INSTANTIATE_TEST_SUITE_P(Kinds, EngineSpeculation,
                         ::testing::Values(Kind::kRight, Kind::kWrong, Kind::kMixed));

// Drafts from n-gram matches in a repetitive text.
TEST(EngineNgram, FindsDraftsInPromptAndAnswer) {
  const auto device = cpu::open_device({.threads = 2}).value();
  const DecoderModel model{small_decoder()};
  Request r;
  for (int i = 0; i < 30; ++i) r.prompt.push_back(i % 6);
  r.sampling.temperature = 0, r.sampling.max_tokens = 60;
  const auto wanted = run(*engine_of(*device, model, invariant()), {r});
  for (const DraftMethod method : {DraftMethod::kNgram, DraftMethod::kSuffix}) {
    EngineOptions options = invariant();
    options.speculation = {.method = method,
                           .num_speculative_tokens = 4,
                           .prompt_lookup_min = 1,
                           .prompt_lookup_max = 4,
                           .drafts_per_match = method == DraftMethod::kSuffix ? 1.0 : 0,
                           .by_cost = false};
    const auto engine = engine_of(*device, model, options);
    EXPECT_EQ(run(*engine, {r}), wanted);
    EXPECT_GT(engine->scheduler().draft_counts().drafts, 0);
  }
}

}  // namespace
}  // namespace sluice::test
