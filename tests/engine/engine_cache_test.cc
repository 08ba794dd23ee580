// The engine's prefix cache: the bits of answers do not depend on it.
#include <gtest/gtest.h>

#include <algorithm>

#include "harness/devices.h"
#include "harness/engine_runs.h"
#include "harness/wrapped_device.h"

namespace sluice::test {
namespace {

using Tokens = std::vector<int32_t>;

EngineOptions with_cache(bool prefix_cache) {
  EngineOptions options = test::invariant();
  options.prefix_cache = prefix_cache;
  return options;
}

Tokens random_tokens(Random& random, int64_t n) {
  Tokens out;
  while (std::ssize(out) < n) out.push_back(static_cast<int32_t>(random.integer(0, 100)));
  return out;
}

class EnginePrefixCache : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = cpu::open_device({.threads = 2}).value();
  DecoderModel model_{small_decoder()};
  std::unique_ptr<Engine> engine(const EngineOptions& options) {
    return engine_of(*device_, model_, options);
  }
};

// Each turn's prompt is the previous prompt, its answer and a new question.
TEST_F(EnginePrefixCache, AConversationReadsItsEarlierTurns) {
  const auto with = engine(with_cache(true)), without = engine(with_cache(false));
  Random random(8);
  Tokens prompt = random_tokens(random, 10);
  for (int turn = 0; turn < 4; ++turn) {
    Request r{.prompt = prompt};
    r.sampling.max_tokens = 9, r.sampling.temperature = 0.7;
    const int64_t hits = with->scheduler().prefix_cache().hits;
    const Answer answer = run(*with, {r}).at(turn);
    EXPECT_EQ(answer, run(*without, {r}).at(turn)) << "turn " << turn;
    // Found: all of the previous answer but its last token, in pages of 4.
    EXPECT_EQ(with->scheduler().prefix_cache().hits - hits,
              turn == 0 ? 0 : (std::ssize(prompt) - 5 - 1) / 4 * 4);
    prompt.insert(prompt.end(), answer.ids.begin(), answer.ids.end());
    const Tokens question = random_tokens(random, 5);
    prompt.insert(prompt.end(), question.begin(), question.end());
  }
  EXPECT_EQ(without->scheduler().prefix_cache().queries, 0);
}

TEST_F(EnginePrefixCache, EveryTokenReportsTheCachedPromptTokens) {
  const auto e = engine(with_cache(true));
  Random random(8);
  Request r{.prompt = random_tokens(random, 18)};
  r.sampling.max_tokens = 3;
  for (const int64_t wanted : {0, 16}) {
    ASSERT_TRUE(e->add(r).ok());
    while (!e->idle()) {
      const auto tokens = e->step();
      ASSERT_TRUE(tokens.ok()) << tokens.status().message;
      for (const GeneratedToken& t : tokens.value()) EXPECT_EQ(t.cached_tokens, wanted);
    }
  }
}

// Requests of one step share the pages that the first of them writes.
TEST_F(EnginePrefixCache, RequestsOfOneStepGiveTheSameBits) {
  Random random(9);
  const Tokens common = random_tokens(random, 30);
  std::vector<Request> requests;
  for (const int64_t n : {0, 1, 5, 0}) {
    Request r{.prompt = common};
    const Tokens rest = random_tokens(random, n);
    r.prompt.insert(r.prompt.end(), rest.begin(), rest.end());
    r.sampling.max_tokens = 20, r.sampling.temperature = n == 1 ? 0.8 : 0;
    requests.push_back(r);
  }
  const auto wanted = run(*engine(with_cache(false)), requests);
  EngineOptions options = with_cache(true);
  const auto e = engine(options);
  EXPECT_EQ(run(*e, requests), wanted);
  EXPECT_EQ(e->scheduler().prefix_cache().hits, 3 * 28);
  options.steps_ahead = 1, options.recorded_sequences = 4;
  EXPECT_EQ(run(*engine(options), requests), wanted) << "a step ahead, and recorded";
}

TEST_F(EnginePrefixCache, LogitsNeitherReadNorSpoilIt) {
  Random random(10);
  Request r{.prompt = random_tokens(random, 60)};
  r.sampling.max_tokens = 9;
  const Tokens other = random_tokens(random, 120);
  const std::vector<int64_t> positions = {0, 40, 59};
  DecoderConfig whole = model_.config;
  for (LayerConfig& layer : whole.layers) layer.attention.window = 0;
  const auto engine = [&](const EngineOptions& o) { return engine_of(*device_, whole, model_.weights, o); };
  const auto wanted = run(*engine(with_cache(false)), {r}).at(0);
  const auto wanted_logits = engine(with_cache(false))->logits(r.prompt, positions).value();
  EngineOptions options = with_cache(true);
  options.max_num_seqs = 1;
  const auto e = engine(options);  // 32 pages: a sequence of 128 tokens
  EXPECT_EQ(run(*e, {r}).at(0), wanted);
  EXPECT_EQ(e->scheduler().pool().published(), 17);
  EXPECT_EQ(e->logits(r.prompt, positions).value(), wanted_logits);
  EXPECT_EQ(e->scheduler().pool().published(), 17) << "the 15 free pages";
  EXPECT_EQ(run(*e, {r}).at(1), wanted);
  EXPECT_EQ(e->scheduler().prefix_cache().hits, 56);
  ASSERT_TRUE(e->logits(other, {119}).ok());
  EXPECT_EQ(e->scheduler().pool().published(), 2) << "all but the first two pages";
  EXPECT_EQ(run(*e, {r}).at(2), wanted);
  EXPECT_EQ(e->scheduler().prefix_cache().hits, 56 + 8);
  EXPECT_FALSE(e->logits(other, {120}).ok());
  EXPECT_EQ(e->scheduler().free_pages(), 32);
}

// A cancelled request may have begun a page that another request has found.
TEST_F(EnginePrefixCache, AFaultOfACancelledRequestLeavesNoPages) {
  Random random(11);
  Request r{.prompt = random_tokens(random, 20)};
  r.sampling.max_tokens = 6, r.sampling.temperature = 0;
  const auto wanted = run(*engine(with_cache(false)), {r}).at(0);
  EngineOptions options = with_cache(true);
  options.steps_ahead = 1;
  FailingDevice failing(*device_, 1, 1);
  const auto e = engine_of(failing, model_, options);
  Request long_one = r;
  long_one.sampling.max_tokens = 50;
  ASSERT_TRUE(e->add(long_one).ok());
  ASSERT_TRUE(e->step().ok());
  ASSERT_GT(e->scheduler().pool().published(), 0);
  e->cancel(0);
  const auto none = e->step();  // waits for the cancelled request's second step, which fails
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(e->scheduler().pool().published(), 0);
  EXPECT_EQ(run(*e, {r}).at(1), wanted);
}

// Random requests with common prefixes are added and cancelled, in a cache that cannot hold them all.
TEST_F(EnginePrefixCache, MixedRequestsGetTheAnswersThatTheyGetAlone) {
  Random random(12);
  std::vector<Request> requests;
  for (int i = 0; i < 24; ++i) {
    Request r;
    if (i > 3) r.prompt = requests[static_cast<size_t>(random.integer(0, i - 1))].prompt;
    r.prompt.resize(static_cast<size_t>(random.integer(std::ssize(r.prompt) / 2, std::ssize(r.prompt))));
    const Tokens rest = random_tokens(random, random.integer(1, i > 3 ? 6 : 30));
    r.prompt.insert(r.prompt.end(), rest.begin(), rest.end());
    r.prompt.resize(std::min<size_t>(r.prompt.size(), 40));
    r.sampling.temperature = i % 3 ? 0.9 : 0;
    r.sampling.seed = static_cast<uint64_t>(i);
    r.sampling.max_tokens = random.integer(1, 23);
    requests.push_back(r);
  }
  std::vector<Answer> alone;
  {
    const auto e = engine(with_cache(false));
    for (size_t i = 0; i < requests.size(); ++i)
      alone.push_back(run(*e, {requests[i]}).at(static_cast<int64_t>(i)));
  }
  EngineOptions options = with_cache(true);
  options.steps_ahead = 1, options.recorded_sequences = 3;
  options.max_model_len = 64, options.max_num_seqs = 4, options.max_num_batched_tokens = 24;
  options.kv_cache_bytes = bytes_of_pages(model_.config, options.page_size, 24);
  const auto e = engine(options);
  ASSERT_EQ(e->memory().pages, 24);
  struct Open {
    size_t request;
    Answer answer;
  };
  std::map<int64_t, Open> open;
  for (int steps = 0; steps < 2000 || !e->idle(); ++steps) {
    ASSERT_LT(steps, 4000);
    if (steps < 2000 && open.size() < 8 && random.integer(0, 3) == 0) {
      const auto which = static_cast<size_t>(random.integer(0, std::ssize(requests) - 1));
      open[e->add(requests[which]).value()] = {which, {}};
    }
    if (!open.empty() && random.integer(0, 19) == 0) {
      e->cancel(open.begin()->first);
      const Answer& got = open.begin()->second.answer;
      const Tokens& wanted = alone[open.begin()->second.request].ids;
      EXPECT_TRUE(std::equal(got.ids.begin(), got.ids.end(), wanted.begin()));
      open.erase(open.begin());
    }
    const auto tokens = e->step();
    ASSERT_TRUE(tokens.ok()) << tokens.status().message;
    for (const GeneratedToken& t : tokens.value()) {
      Open& o = open.at(t.request);
      Answer& a = o.answer;
      a.push(t);
      if (t.finish == FinishReason::kNone) continue;
      ASSERT_EQ(a, alone[o.request]) << "request " << t.request << " as " << o.request;
      open.erase(t.request);
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(e->scheduler().free_pages(), 24);
  const PrefixCacheCounts counts = e->scheduler().prefix_cache();
  EXPECT_GT(counts.hits, counts.queries / 6);
  EXPECT_GT(counts.evictions, 100);
  EXPECT_GT(e->scheduler().preemptions(), 10);
}

}  // namespace
}  // namespace sluice::test
