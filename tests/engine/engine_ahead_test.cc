// Steps that are enqueued before the previous step's tokens are known, and steps that are recorded, give the
// same answers.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "harness/devices.h"
#include "harness/engine_runs.h"
#include "harness/far_model.h"
#include "harness/wrapped_device.h"

namespace sluice::test {
namespace {

EngineOptions ahead(EngineOptions options, int64_t recorded = 0) {
  options.steps_ahead = 1;
  options.recorded_sequences = recorded;
  return options;
}

class EngineAhead : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = cpu::open_device({.threads = 2}).value();
  DecoderModel model_{small_decoder()};
  std::map<int64_t, Answer> answers(const EngineOptions& options, const std::vector<Request>& requests) {
    return run(*engine_of(*device_, model_, options), requests);
  }
};

TEST_F(EngineAhead, GivesTheSameAnswers) {
  const auto wanted = answers(invariant(), some_requests());
  EXPECT_EQ(answers(ahead(invariant()), some_requests()), wanted);
  EXPECT_EQ(answers(ahead(invariant(), 3), some_requests()), wanted) << "with recorded steps";
  EngineOptions recorded = invariant();
  recorded.recorded_sequences = 8;
  EXPECT_EQ(answers(recorded, some_requests()), wanted) << "with recorded steps, and none ahead";
  EngineOptions chunks = ahead(invariant(), 8);
  chunks.max_num_batched_tokens = 8;
  EXPECT_EQ(answers(chunks, some_requests()), wanted) << "with prompts in chunks";
}

TEST_F(EngineAhead, RecordsEachSequenceCountOnce) {
  const auto engine = engine_of(*device_, model_, ahead(invariant(), 4));
  EXPECT_EQ(engine->recordings(), 0);
  (void)run(*engine, some_requests());
  const int64_t once = engine->recordings();
  EXPECT_GE(once, 3);
  (void)run(*engine, some_requests());
  EXPECT_EQ(engine->recordings(), once);
}

// A stop token is noticed one step late: the token after it is dropped, and its pages are released.
TEST_F(EngineAhead, EndsAtStopTokensAndLengths) {
  Request r{.prompt = {3, 1, 4, 1, 5}};
  r.sampling.temperature = 0;
  EngineOptions options = invariant();
  options.max_model_len = 32;
  const Answer full = answers(ahead(options), {r}).at(0);
  EXPECT_EQ(full, answers(options, {r}).at(0));
  EXPECT_EQ(full.finish, FinishReason::kLength);
  EXPECT_EQ(full.ids.size(), 27u);
  const auto engine = engine_of(*device_, model_, ahead(options));
  const int64_t all = engine->scheduler().free_pages();
  std::vector<Request> several;
  for (const int64_t most : {1, 2, 6, 6, 6}) {
    r.sampling.max_tokens = most;
    several.push_back(r);
  }
  several[3].sampling.stop_token_ids = {full.ids[0]};
  several[4].sampling.stop_token_ids = {full.ids[3]};
  const auto got = run(*engine, several);
  for (int64_t i = 0; i < 5; ++i) {
    const Answer& a = got.at(i);
    EXPECT_TRUE(std::equal(a.ids.begin(), a.ids.end(), full.ids.begin())) << i;
    EXPECT_EQ(a.finish, i < 3 ? FinishReason::kLength : FinishReason::kStop) << i;
  }
  EXPECT_EQ(got.at(0).ids.size(), 1u);
  EXPECT_EQ(got.at(1).ids.size(), 2u);
  EXPECT_EQ(got.at(2).ids.size(), 6u);
  EXPECT_EQ(got.at(3).ids.size(), 1u);
  EXPECT_EQ(engine->scheduler().free_pages(), all);
  // An idle engine may still have a step in flight, which must not answer the next request.
  r.sampling.max_tokens = 2;
  EXPECT_EQ(run(*engine, {r}).at(5).ids.size(), 2u);
}

TEST_F(EngineAhead, ShortOfPagesGivesTheSameAnswers) {
  const auto wanted = answers(invariant(), some_requests());
  EngineOptions options = ahead(invariant(), 8);
  options.max_model_len = 64;
  // The pages of one sequence, and no more.
  options.kv_cache_bytes = bytes_of_pages(model_.config, options.page_size, 32);
  const auto engine = engine_of(*device_, model_, options);
  EXPECT_EQ(run(*engine, some_requests()), wanted);
  EXPECT_GT(engine->scheduler().preemptions(), 0);
  EXPECT_EQ(engine->scheduler().free_pages(), 32);
}

// Random requests are added and cancelled, in a cache that cannot hold them all. Each answer is a prefix of
// the answer that the request gets alone.
TEST_F(EngineAhead, RequestsThatComeAndGo) {
  Random random(3);
  std::vector<Request> requests;
  for (int i = 0; i < 40; ++i) {
    Request r;
    for (int64_t n = random.integer(1, 30); n > 0; --n)
      r.prompt.push_back(static_cast<int32_t>(random.integer(0, 100)));
    r.sampling.temperature = i % 3 ? 0.9 : 0;
    r.sampling.seed = static_cast<uint64_t>(i);
    r.sampling.max_tokens = random.integer(1, 30);
    for (int64_t n = random.integer(0, 4); n > 0; --n)
      r.sampling.stop_token_ids.push_back(static_cast<int32_t>(random.integer(0, 100)));
    requests.push_back(r);
  }
  std::vector<Answer> alone;
  {
    const auto engine = engine_of(*device_, model_, invariant());
    for (size_t i = 0; i < requests.size(); ++i)
      alone.push_back(run(*engine, {requests[i]}).at(static_cast<int64_t>(i)));
  }
  EngineOptions options = ahead(invariant(), 3);
  options.max_model_len = 64, options.max_num_seqs = 4, options.max_num_batched_tokens = 16;
  options.kv_cache_bytes = bytes_of_pages(model_.config, options.page_size, 24);
  const auto engine = engine_of(*device_, model_, options);
  const int64_t pages = engine->scheduler().free_pages();
  std::vector<Answer> got(requests.size());
  std::vector<bool> cancelled(requests.size());
  size_t added = 0;
  while (added < requests.size() || !engine->idle()) {
    for (; added < requests.size() && random.integer(0, 3) > 0; ++added)
      ASSERT_EQ(engine->add(requests[added]).value(), static_cast<int64_t>(added));
    if (added > 0 && random.integer(0, 9) == 0) {
      const auto who = static_cast<size_t>(random.integer(0, static_cast<int64_t>(added) - 1));
      engine->cancel(static_cast<int64_t>(who));
      cancelled[who] = true;
    }
    const auto tokens = engine->step();
    ASSERT_TRUE(tokens.ok()) << tokens.status().message;
    for (const GeneratedToken& t : tokens.value()) {
      Answer& a = got[static_cast<size_t>(t.request)];
      ASSERT_EQ(a.finish, FinishReason::kNone);
      ASSERT_FALSE(cancelled[static_cast<size_t>(t.request)]);
      a.push(t);
    }
  }
  EXPECT_EQ(engine->scheduler().free_pages(), pages);
  EXPECT_GT(engine->scheduler().preemptions(), 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!cancelled[i]) {
      EXPECT_EQ(got[i], alone[i]) << i;
    } else {
      ASSERT_LE(got[i].ids.size(), alone[i].ids.size());
      EXPECT_TRUE(std::equal(got[i].ids.begin(), got[i].ids.end(), alone[i].ids.begin())) << i;
    }
  }
}

TEST_F(EngineAhead, LogitsThatAreNoNumbersEndOneRequestAndNotTheOthers) {
  Request r{.prompt = {3, 1, 4}};
  r.sampling.temperature = 0, r.sampling.max_tokens = 8;
  const Answer good = answers(invariant(), {r}).at(0);
  Request other{.prompt = {6, 5, 3, 5}};
  other.sampling.temperature = 0, other.sampling.max_tokens = 8;
  const Answer wanted = answers(invariant(), {other}).at(0);
  ASSERT_EQ(std::count(wanted.ids.begin(), wanted.ids.end(), good.ids[0]), 0) << "choose another prompt";
  model_.weights(-1, "embedding").row<BF16>(good.ids[0])[0] =
      to_bf16(std::numeric_limits<float>::quiet_NaN());
  const auto engine = engine_of(*device_, model_, ahead(invariant()));
  ASSERT_TRUE(engine->add(r).ok());
  ASSERT_TRUE(engine->add(other).ok());
  ASSERT_TRUE(engine->step().ok());
  for (int again = 0; again < 2; ++again) {
    const auto second = engine->step();
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.status().code, Code::kDevice);
    EXPECT_NE(second.status().message.find("request 0: wanted finite logits, found nan as a logprob"),
              std::string::npos)
        << second.status().message;
  }
  engine->cancel(0);
  std::vector<int32_t> rest = {wanted.ids[0]};
  while (!engine->idle()) {
    const auto tokens = engine->step();
    ASSERT_TRUE(tokens.ok()) << tokens.status().message;
    for (const GeneratedToken& t : tokens.value()) rest.push_back(t.id);
  }
  EXPECT_EQ(rest, wanted.ids);
}

// A failed step is repeated, with the steps after it.
TEST_F(EngineAhead, GoesOnAfterAFault) {
  const auto wanted = answers(invariant(), some_requests());
  for (const int first : {0, 1, 5, 11}) {
    FailingDevice failing(*device_, first, 2);
    const auto engine = engine_of(failing, model_, ahead(invariant(), 4));
    for (const Request& r : some_requests()) ASSERT_TRUE(engine->add(r).ok());
    std::map<int64_t, Answer> got;
    int faults = 0, steps = 0;
    while (!engine->idle()) {
      ASSERT_LT(++steps, 1000);
      const auto tokens = engine->step();
      if (!tokens.ok()) {
        EXPECT_EQ(tokens.status().message, "a fault");
        ASSERT_LE(++faults, 2);
        continue;
      }
      for (const GeneratedToken& t : tokens.value()) {
        Answer& a = got[t.request];
        a.push(t);
      }
    }
    EXPECT_EQ(faults, 2);
    EXPECT_EQ(got, wanted) << "a fault at wait " << first;
  }
}

TEST_F(EngineAhead, LogitsAfterRequests) {
  EngineOptions options = invariant();
  const std::vector<int32_t> tokens = {9, 8, 7, 6, 5, 4, 3, 2, 1};
  const auto wanted = engine_of(*device_, model_, options)->logits(tokens, {0, 4, 8}).value();
  const auto engine = engine_of(*device_, model_, ahead(options, 2));
  Request r{.prompt = {1, 2, 3}};
  r.sampling.max_tokens = 9;
  (void)run(*engine, {r});
  EXPECT_EQ(engine->logits(tokens, {0, 4, 8}).value(), wanted);
  EXPECT_EQ(engine->logits(tokens, {4, 4}).status().message,
            "logits: wanted ascending positions below 9, found 4");
  EXPECT_FALSE(engine->logits(tokens, {9}).ok());
}

TEST_F(EngineAhead, UnwrittenMemoryIsNotRead) {
  const auto wanted = answers(invariant(), some_requests());
  PoisonedDevice poisoned(*device_);
  EXPECT_EQ(run(*engine_of(poisoned, model_, ahead(invariant(), 4)), some_requests()), wanted);
  EXPECT_EQ(run(*engine_of(poisoned, model_, invariant()), some_requests()), wanted);
}

// All of it on a device that runs nothing before a wait and whose memory the host cannot access.
TEST(EngineFar, RunsOnADeviceWithMemoryOfItsOwn) {
  FarModel far;
  const auto wanted = run(*far.plain_engine(), some_requests());
  ASSERT_EQ(wanted.size(), some_requests().size());
  for (const auto& [request, answer] : wanted) EXPECT_EQ(answer.finish, FinishReason::kLength) << request;
  const auto engine = far.engine(invariant());  // ahead, and recorded
  EXPECT_EQ(run(*engine, some_requests()), wanted);
  EXPECT_GT(engine->recordings(), 0);
  EXPECT_EQ(engine->logits({1, 2, 3}, {2}).value().size(), 101u);
}

TEST_F(EngineAhead, TheCacheTakesTheFreeMemory) {
  const EngineOptions full = roomy();
  const auto all = engine_of(*device_, model_, full);
  const int64_t page = all->memory().kv_cache_bytes / all->memory().pages;
  EngineOptions options = roomy();
  options.memory_utilization = 0.75;
  // 25% of the 40 MB belong to other programs; 60 pages fit beside the memory that steps need.
  const int64_t total = 40 << 20;
  const int64_t logits = std::max<int64_t>(8 * 101 * 4, all->decoder().greedy_workspace_bytes());
  const int64_t steps = all->memory().workspace_bytes + logits + 128 * 16 * 4;
  ScarceDevice scarce(*device_, total / 4 + steps + 60 * page + page / 2, total);
  const auto engine = engine_of(scarce, model_, options);
  EXPECT_EQ(engine->memory().pages, 60);
  EXPECT_EQ(engine->decoder().bounds().pages, 60);
  EXPECT_EQ(run(*engine, some_requests()).size(), some_requests().size());
  ScarceDevice roomier(*device_, total, total);
  EXPECT_EQ(engine_of(roomier, model_, options)->memory().pages, all->memory().pages)
      << "no more pages than the sequences can use";
  ScarceDevice too_scarce(*device_, total / 4 + steps + 49 * page, total);
  const auto none = Engine::make(too_scarce, model_.config, model_.weights, options);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code, Code::kOutOfMemory);
  EXPECT_NE(none.status().message.find("for one sequence of 128 tokens, found"), std::string::npos)
      << none.status().message;
}

TEST_F(EngineAhead, RefusesOtherDepths) {
  const auto made = [&](const EngineOptions& o) {
    return Engine::make(*device_, model_.config, model_.weights, o).status().message;
  };
  EXPECT_EQ(made({.steps_ahead = 2}), "steps_ahead: wanted 0 to 1, found 2");
  EXPECT_EQ(made({.recorded_sequences = 9}), "recorded_sequences: wanted 0 to 8, found 9");
  EXPECT_EQ(made({.memory_utilization = 1.5}), "memory_utilization: wanted 0 to 1, found 1.5");
}

}  // namespace
}  // namespace sluice::test
