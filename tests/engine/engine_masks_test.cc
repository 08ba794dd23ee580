// Masks that are late, fail or never arrive, in whole engines.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

#include "harness/devices.h"
#include "harness/engine_runs.h"
#include "harness/far_model.h"
#include "harness/sum_filter.h"

namespace sluice::test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Sleeps before every `every`-th mask, for longer than a step waits for masks.
DoingFilter::Does sleeps(milliseconds time, int64_t every = 1) {
  return [=](int64_t tokens, std::span<uint32_t>, const std::stop_token&) -> Status {
    if (tokens % every == 0) std::this_thread::sleep_for(time);
    return {};
  };
}

// Returns when a stop is requested, and after 20 seconds in any case.
Status until_stopped(const std::stop_token& stop, std::atomic<int>* entered, std::atomic<int>* left) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  ++*entered;
  wake.wait_for(lock, stop, std::chrono::seconds(20), [] { return false; });
  *left += stop.stop_requested() ? 1 : 0;
  return {};
}

Request plain_request(int32_t first, int64_t max_tokens) {
  Request r{.prompt = {first, 2, 3}};
  r.sampling.max_tokens = max_tokens, r.sampling.seed = static_cast<uint64_t>(first);
  return r;
}
Request filtered_request(int32_t first, int64_t max_tokens, std::shared_ptr<TokenFilter> filter) {
  Request r = plain_request(first, max_tokens);
  r.filter = std::move(filter);
  return r;
}

// The requests of filtered_requests(), with filters that are sometimes slow.
Filtered slow_requests(milliseconds time) {
  Filtered out = filtered_requests();
  for (size_t i = 0; i < out.requests.size(); ++i)
    if (out.moduli[i] > 0)
      out.requests[i].filter =
          std::make_shared<DoingFilter>(out.moduli[i], sleeps(time, static_cast<int64_t>(i) + 2));
  return out;
}

class EngineMasks : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = cpu::open_device({.threads = 2}).value();
  DecoderModel model_{small_decoder()};
};

// Steps until `done`, or until a time limit that only a hang exceeds.
template <class Done>
std::vector<GeneratedToken> step_until(Engine& engine, const Done& done) {
  std::vector<GeneratedToken> out;
  for (const auto end = Clock::now() + std::chrono::seconds(60); !done() && Clock::now() < end;) {
    auto tokens = engine.step();
    EXPECT_TRUE(tokens.ok()) << tokens.status().message;
    if (!tokens.ok()) break;
    for (GeneratedToken& t : tokens.value()) out.push_back(std::move(t));
  }
  EXPECT_TRUE(done());
  return out;
}

TEST_F(EngineMasks, ASlowFilterTakesNoStepFromOthers) {
  const auto engine = engine_of(*device_, model_, roomy());
  for (const int32_t first : {1, 2}) ASSERT_TRUE(engine->add(plain_request(first, 40)).ok());
  ASSERT_TRUE(
      engine->add(filtered_request(3, 3, std::make_shared<DoingFilter>(3, sleeps(milliseconds(200))))).ok());
  std::vector<GeneratedToken> slow;
  for (int step = 0; step < 40; ++step) {
    auto tokens = engine->step();
    ASSERT_TRUE(tokens.ok());
    int64_t plain = 0;
    for (GeneratedToken& t : tokens.value())
      if (t.request == 2)
        slow.push_back(std::move(t));
      else
        ++plain;
    ASSERT_EQ(plain, 2) << "step " << step;
  }
  for (GeneratedToken& t : step_until(*engine, [&] { return engine->idle(); })) slow.push_back(std::move(t));
  ASSERT_EQ(slow.size(), 3u);
  EXPECT_EQ(slow.back().finish, FinishReason::kLength);
  const MaskCounts counts = engine->mask_counts();
  EXPECT_GT(counts.steps_sat_out, 0);
  EXPECT_GE(counts.times.seconds, 3 * 0.2);
  EXPECT_EQ(counts.times.counts[11] + counts.times.counts[12], 3) << "more than 0.2 seconds";
}

TEST_F(EngineMasks, AnswersAreTheSameHoweverLateMasksAre) {
  const auto wanted = run(*engine_of(*device_, model_, invariant()), filtered_requests().requests);
  EngineOptions ahead = invariant(), tight = invariant(), chunks = invariant(), uncached = invariant();
  ahead.steps_ahead = 1, ahead.recorded_sequences = 8;
  tight.max_model_len = 64, tight.kv_cache_bytes = bytes_of_pages(model_.config, tight.page_size, 32);
  chunks.max_num_batched_tokens = 9;
  uncached.prefix_cache = false;
  for (const EngineOptions& options : {invariant(), ahead, tight, chunks, uncached}) {
    const auto engine = engine_of(*device_, model_, options);
    EXPECT_EQ(run(*engine, slow_requests(milliseconds(30)).requests), wanted);
    EXPECT_GT(engine->mask_counts().steps_sat_out, 0);
    EXPECT_TRUE(engine->take_failed().empty());
    EXPECT_EQ(engine->scheduler().free_pages(), engine->memory().pages);
  }
}

TEST(EngineMasksFar, AnswersAreTheSameOnADeviceWithMemoryOfItsOwn) {
  FarModel far;
  const auto wanted = run(*far.plain_engine(), filtered_requests().requests);
  const auto engine = far.engine(invariant());
  EXPECT_EQ(run(*engine, slow_requests(milliseconds(30)).requests), wanted);
  EXPECT_GT(engine->mask_counts().steps_sat_out, 0);
}

// In a batch with requests whose answers must not change.
TEST_F(EngineMasks, AFailingFilterEndsOnlyItsOwnRequest) {
  class FailsToHear final : public TokenFilter {
   public:
    Status allowed(std::span<uint32_t> bits, const std::stop_token&) override {
      std::fill(bits.begin(), bits.end(), ~0u);
      return {};
    }
    Status accept(int32_t, const std::stop_token&) override { return unsupported("not this token"); }
    std::unique_ptr<TokenFilter> copy() const override { return std::make_unique<FailsToHear>(*this); }
  };
  const auto doing = [](DoingFilter::Does does) { return std::make_shared<DoingFilter>(3, std::move(does)); };
  const auto at_five = [&](Status status) {
    return doing([status](int64_t tokens, std::span<uint32_t>, const std::stop_token&) {
      return tokens < 5 ? Status{} : status;
    });
  };
  // The last mask word of 101 tokens has 27 unused bits, which must not count as allowed.
  const auto nothing_left = doing([](int64_t tokens, std::span<uint32_t> bits, const std::stop_token&) {
    if (tokens == 2) std::fill(bits.begin(), bits.end(), 0u), bits.back() = ~((1u << (101 % 32)) - 1);
    return Status{};
  });
  const auto no_memory =
      doing([](int64_t, std::span<uint32_t>, const std::stop_token&) -> Status { throw std::bad_alloc(); });
  struct Case {
    std::shared_ptr<TokenFilter> filter;
    size_t tokens;  // length of the failed answer
    Code code;
    const char* message;
  };
  const std::vector<Case> cases{
      {at_five(out_of_memory("too long a way")), 5, Code::kOutOfMemory, "too long a way"},
      {std::make_shared<FailsToHear>(), 1, Code::kUnsupported, "not this token"},
      {nothing_left, 2, Code::kInvalidArgument, "the grammar allows no next token"},
      {no_memory, 0, Code::kOutOfMemory, "out of memory while computing the grammar's mask"}};
  const std::vector<Request> others = filtered_requests().requests;
  const auto wanted = run(*engine_of(*device_, model_, invariant()), others);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    const auto engine = engine_of(*device_, model_, invariant());
    for (const Request& r : filtered_requests().requests) ASSERT_TRUE(engine->add(r).ok());
    const int64_t failing = engine->add(filtered_request(9, 30, c.filter)).value();
    std::map<int64_t, Answer> answers;
    for (const GeneratedToken& t : step_until(*engine, [&] { return engine->idle(); }))
      answers[t.request].push(t);
    const Answer failed = answers[failing];
    EXPECT_EQ(failed.ids.size(), c.tokens);
    EXPECT_EQ(failed.finish, FinishReason::kNone);
    answers.erase(failing);
    EXPECT_EQ(answers, wanted);
    const auto told = engine->take_failed();
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].request, failing);
    EXPECT_EQ(told[0].status.code, c.code);
    EXPECT_EQ(told[0].status.message, c.message);
    EXPECT_TRUE(engine->take_failed().empty());
    EXPECT_EQ(engine->scheduler().free_pages(), engine->memory().pages);
  }
}

TEST_F(EngineMasks, AFilterThatNeverReturnsBlocksNoStep) {
  std::atomic<int> entered = 0, left = 0;
  const auto never = [&] {
    return std::make_shared<DoingFilter>(3, [&](int64_t, std::span<uint32_t>, const std::stop_token& stop) {
      return until_stopped(stop, &entered, &left);
    });
  };
  auto engine = engine_of(*device_, model_, roomy());
  const int64_t first = engine->add(filtered_request(1, 9, never())).value();
  // A request that is alone and has no mask must not block step(), so that its caller can do other work.
  for (int i = 0; i < 3 || entered == 0; ++i) {
    const auto tokens = engine->step();
    ASSERT_TRUE(tokens.ok());
    ASSERT_TRUE(tokens.value().empty());
  }
  EXPECT_FALSE(engine->idle());
  const int64_t plain = engine->add(plain_request(2, 5)).value();
  bool done = false;
  for (int i = 0; i < 5; ++i) {
    const auto tokens = engine->step();
    ASSERT_TRUE(tokens.ok());
    ASSERT_EQ(tokens.value().size(), 1u);
    EXPECT_EQ(tokens.value()[0].request, plain);
    done = tokens.value()[0].finish == FinishReason::kLength;
  }
  EXPECT_TRUE(done);
  engine->cancel(first);
  EXPECT_TRUE(engine->idle());
  for (int i = 0; i < 2000 && left == 0; ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(left, 1) << "a stop is requested of a cancelled request's filter";
  // More filters than threads, so that some are still queued.
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(engine->add(filtered_request(3, 9, never())).ok());
  step_until(*engine, [&] { return entered > 1; });
  engine.reset();
  EXPECT_EQ(left, entered) << "a stop is requested of all filters when the engine is destroyed";
}

// There are more slow filters than threads, so filters served in order would make the quick one wait for all
// of them at each token.
TEST_F(EngineMasks, SlowFiltersDoNotHoldUpAQuickOne) {
  constexpr int32_t kSlow = 36;
  constexpr int64_t kTokens = 40;
  EngineOptions options = roomy();
  options.max_num_seqs = kSlow + 1;
  const auto engine = engine_of(*device_, model_, options);
  std::vector<int64_t> tokens(kSlow + 1);
  for (int32_t i = 0; i < kSlow; ++i)
    ASSERT_TRUE(
        engine->add(filtered_request(i, 100, std::make_shared<DoingFilter>(3, sleeps(milliseconds(40)))))
            .ok());
  ASSERT_TRUE(engine->add(filtered_request(kSlow, kTokens, std::make_shared<SumFilter>(3))).ok());
  for (const auto end = Clock::now() + std::chrono::seconds(60);
       tokens[kSlow] < kTokens && Clock::now() < end;) {
    const auto made = engine->step();
    ASSERT_TRUE(made.ok());
    for (const GeneratedToken& t : made.value()) ++tokens[static_cast<size_t>(t.request)];
  }
  EXPECT_EQ(tokens[kSlow], kTokens);
  const int64_t slow = *std::max_element(tokens.begin(), tokens.begin() + kSlow);
  RecordProperty("tokens_of_a_slow_one", static_cast<int>(slow));
  EXPECT_LT(slow, kTokens / 2);
}

}  // namespace
}  // namespace sluice::test
