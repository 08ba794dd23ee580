// The engine's thread with filters that fail or never return.
#include "server/engine_thread.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "backends/cpu/device.h"
#include "harness/sum_filter.h"

namespace sluice {
namespace {

using test::DoingFilter;

class EngineThreads : public ::testing::Test {
 protected:
  struct Ended {
    int64_t tokens = 0;
    FinishReason finish = FinishReason::kNone;
    Status fault = {};
  };
  void take(const StepReport& report) {
    const std::lock_guard lock(mutex_);
    for (const TicketToken& t : report.tokens) {
      ++tickets_[t.ticket].tokens;
      tickets_[t.ticket].finish = t.token.finish;
    }
    for (const TicketFault& f : report.faults) tickets_[f.ticket].fault = f.status;
    wake_.notify_all();
  }
  // Waits for the sequence's last token or its fault.
  Ended end_of(Ticket ticket) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(wake_.wait_for(lock, std::chrono::seconds(60),
                               [&] {
                                 const Ended& e = tickets_[ticket];
                                 return e.finish != FinishReason::kNone || !e.fault.ok();
                               }))
        << "ticket " << ticket;
    return tickets_[ticket];
  }
  static QueuedSequence sequence(Ticket ticket, int64_t tokens, std::shared_ptr<TokenFilter> filter = {}) {
    QueuedSequence s{.ticket = ticket, .request = {.prompt = {1, 2, 3}, .filter = std::move(filter)}};
    s.request.sampling.max_tokens = tokens;
    return s;
  }
  static std::shared_ptr<TokenFilter> never_answers() {
    return std::make_shared<DoingFilter>(
        3, [](int64_t, std::span<uint32_t>, const std::stop_token& stop) -> Status {
          std::mutex mutex;
          std::condition_variable_any wake;
          std::unique_lock lock(mutex);
          wake.wait_for(lock, stop, std::chrono::seconds(60), [] { return false; });
          return {};
        });
  }

  std::unique_ptr<Device> device_ = cpu::open_device({.threads = 2}).value();
  test::DecoderModel model_{test::small_decoder()};
  std::unique_ptr<Engine> engine_ = test::engine_of(*device_, model_, test::roomy());
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<Ticket, Ended> tickets_;
};

TEST_F(EngineThreads, AFailingFilterIsAFaultOfOnlyItsTicket) {
  EngineThread thread(*engine_, 8, [this](const StepReport& report) { take(report); });
  const auto fails = [](int64_t tokens, std::span<uint32_t>, const std::stop_token&) {
    return tokens < 4 ? Status{} : unsupported("as far as it goes");
  };
  ASSERT_TRUE(thread.submit(
      {sequence(7, 20), sequence(8, 20, std::make_shared<DoingFilter>(3, fails)), sequence(9, 20)}));
  const Ended failed = end_of(8);
  EXPECT_EQ(failed.tokens, 4);
  EXPECT_EQ(failed.finish, FinishReason::kNone);
  EXPECT_EQ(failed.fault.code, Code::kUnsupported);
  EXPECT_EQ(failed.fault.message, "as far as it goes");
  for (const Ticket ticket : {7, 9}) {
    const Ended other = end_of(ticket);
    EXPECT_EQ(other.tokens, 20);
    EXPECT_EQ(other.finish, FinishReason::kLength);
    EXPECT_TRUE(other.fault.ok());
  }
  EXPECT_TRUE(thread.load().healthy);
  EXPECT_GT(thread.load().masks.times.seconds, 0);
}

TEST_F(EngineThreads, AFilterThatNeverReturnsBlocksNoOtherRequest) {
  const auto begin = std::chrono::steady_clock::now();
  {
    EngineThread thread(*engine_, 8, [this](const StepReport& report) { take(report); });
    ASSERT_TRUE(thread.submit({sequence(1, 20, never_answers()), sequence(2, 20, never_answers())}));
    ASSERT_TRUE(thread.submit({sequence(3, 20)}));
    EXPECT_EQ(end_of(3).tokens, 20);
    thread.cancel({1});
    ASSERT_TRUE(thread.submit({sequence(4, 20)}));
    EXPECT_EQ(end_of(4).tokens, 20);
    EXPECT_GT(thread.load().masks.steps_sat_out, 0);
    EXPECT_EQ(thread.load().running, 1);
  }
  engine_.reset();  // while the other filter is running
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(50));
}

}  // namespace
}  // namespace sluice
