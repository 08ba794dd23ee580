// Threads that ask filters which tokens may come, beside the steps of the engine.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/worker_thread.h"
#include "engine/token_filter.h"

namespace sluice {

// What an engine's thread waits for the masks of one step, all together.
constexpr std::chrono::milliseconds kMaskWait{5};

// The filter of one sequence, and its mask: the tokens that may come next.
class TokenMask {
 public:
  // The filter hears of the tokens behind the first `heard`, which are the prompt.
  TokenMask(std::shared_ptr<TokenFilter> filter, int64_t heard) : filter_(std::move(filter)), heard_(heard) {}

  // Whether the mask behind these tokens has yet to be made: then it is what MaskWorkers::start() takes. The one before must be made.
  // Behind `drafts`, which may follow, masks are made as far as the filter allows those.
  bool begin(std::span<const int32_t> tokens, std::span<const int32_t> drafts = {});
  bool made() const { return made_.load(std::memory_order_acquire); }
  // Nobody waits for it any more.
  void stop() { stop_.request_stop(); }
  // Of a mask that is made: bits() if the status is good, of which at least one is set.
  const Status& status() const { return status_; }
  std::span<const uint32_t> bits() const { return of_row(0); }
  // Behind the first so many drafts; 1 to 1 + drafts of these are made. A token behind a draft without one never counts.
  int64_t rows() const { return rows_; }
  std::span<const uint32_t> of_row(int64_t row) const {
    const size_t words = bits_.size() / static_cast<size_t>(1 + std::ssize(drafts_));
    return std::span(bits_).subspan(static_cast<size_t>(row) * words, words);
  }

 private:
  friend class MaskWorkers;
  void make(int64_t vocab);
  Status ask(int64_t vocab);
  void ask_behind_drafts(int64_t vocab);
  bool is_quick() const { return spent_ <= made_count_ * kMaskWait; }  // so far

  std::shared_ptr<TokenFilter> filter_;
  std::stop_source stop_;
  int64_t heard_,
      behind_ = -1;  // tokens of the sequence: that the filter has heard of, and that the mask is for
  std::vector<int32_t> unheard_, drafts_;
  int64_t rows_ = 1;
  std::vector<uint32_t> bits_;
  Status status_;
  std::chrono::steady_clock::duration spent_{0}, last_{0};  // on all of its masks, and on the last
  int64_t made_count_ = 0;
  std::atomic<bool> made_ = false;
};

// How long masks took to make.
struct MaskTimes {
  static constexpr std::array<double, 12> kBounds = {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005,
                                                     0.01,   0.02,   0.05,   0.1,   0.2,   0.5};  // seconds
  std::array<int64_t, kBounds.size() + 1> counts =
      {};  // by the first bound that is not exceeded, and those above all
  double seconds = 0;
};

// What an engine has counted so far.
struct MaskCounts {
  int64_t steps_sat_out = 0;  // once for each sequence and step: its mask was late
  MaskTimes times = {};
};

// Half of the threads leave filters alone that are slow on average, so that any number of those cannot hold up the quick ones; the
// other half takes what has waited longest. start(), wait() and wait_for_any() are of one thread.
class MaskWorkers {
 public:
  explicit MaskWorkers(int64_t vocab) : vocab_(vocab) {}
  ~MaskWorkers();  // stops all masks, and waits for those under way
  MaskWorkers(const MaskWorkers&) = delete;
  MaskWorkers& operator=(const MaskWorkers&) = delete;

  // Makes the threads, the first time. kOutOfMemory: the system has none left.
  Status open();
  void start(std::span<const std::shared_ptr<TokenMask>> masks);
  // Whether it is made, after waiting no longer than that.
  bool wait(const TokenMask& mask, std::chrono::steady_clock::time_point until);
  // Until one of them is made, no longer than that.
  void wait_for_any(std::span<const std::shared_ptr<TokenMask>> masks,
                    std::chrono::steady_clock::time_point until);
  MaskTimes times() const;

 private:
  struct Job {
    std::shared_ptr<TokenMask> mask;
    int64_t number = 0;
  };
  enum class Takes : uint8_t { kAll, kQuick };
  void work(size_t thread, Takes takes);
  std::deque<Job>* queue_for(Takes takes);
  void note(const TokenMask& mask);

  const int64_t vocab_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, made_;
  // Guarded by the mutex.
  std::deque<Job> quick_, slow_;
  std::vector<std::shared_ptr<TokenMask>> under_way_;  // of each thread
  const TokenMask* awaited_ = nullptr;
  bool awaits_any_ = false, end_ = false;
  int64_t started_ = 0;
  MaskTimes times_;
  std::vector<WorkerThread> threads_;  // the caller's
};

}  // namespace sluice
