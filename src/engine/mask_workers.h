// Threads that run token filters while the engine runs steps.
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

// Upper bound of the time for which the engine's thread waits for all masks of one step.
constexpr std::chrono::milliseconds kMaskWait{5};

// The filter of one sequence, and its mask: the tokens that may come next.
class TokenMask {
 public:
  // `heard`: number of prompt tokens, which the filter does not receive.
  TokenMask(std::shared_ptr<TokenFilter> filter, int64_t heard) : filter_(std::move(filter)), heard_(heard) {}

  // Prepares the mask of the token after `tokens`, and the masks after `drafts` as far as the filter allows
  // the drafts. Returns true if the mask has to be computed: then pass this object to MaskWorkers::start().
  // The previous mask must be finished.
  bool begin(std::span<const int32_t> tokens, std::span<const int32_t> drafts = {});
  bool made() const { return made_.load(std::memory_order_acquire); }
  // Call it when the result is no longer needed.
  void stop() { stop_.request_stop(); }
  // Valid when made() is true. If the status is ok, at least one bit is set.
  const Status& status() const { return status_; }
  std::span<const uint32_t> bits() const { return of_row(0); }
  // The number of masks: one for the token after `tokens`, and one after each draft that the filter allows,
  // up to the first draft that it does not allow. Samples after a draft that it does not allow are discarded.
  int64_t rows() const { return rows_; }
  std::span<const uint32_t> of_row(int64_t row) const {
    const size_t words = bits_.size() / static_cast<size_t>(1 + std::ssize(drafts_));
    return std::span(bits_).subspan(static_cast<size_t>(row) * words, words);
  }

 private:
  friend class MaskWorkers;
  void make(int64_t vocab);
  Status request_mask(int64_t vocab);
  void request_masks_after_drafts(int64_t vocab);
  bool is_quick() const { return spent_ <= made_count_ * kMaskWait; }  // on average so far

  std::shared_ptr<TokenFilter> filter_;
  std::stop_source stop_;
  // number of tokens passed to the filter or waiting in unheard_, including the prompt
  int64_t heard_;
  int64_t mask_after_ = -1;  // the mask applies to the token after this many tokens of the sequence
  std::vector<int32_t> unheard_, drafts_;
  int64_t rows_ = 1;
  std::vector<uint32_t> bits_;
  Status status_;
  // time spent on all masks so far, and on the last mask
  std::chrono::steady_clock::duration spent_{0}, last_{0};
  int64_t made_count_ = 0;
  std::atomic<bool> made_ = false;
};

// Histogram of the time per mask.
struct MaskTimes {
  static constexpr std::array<double, 12> kBounds = {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005,
                                                     0.01,   0.02,   0.05,   0.1,   0.2,   0.5};  // seconds
  std::array<int64_t, kBounds.size() + 1> counts =
      {};  // masks per bucket; a bucket includes its upper bound, and the last bucket has no bound
  double seconds = 0;
};

// Totals since the engine was created.
struct MaskCounts {
  int64_t steps_sat_out = 0;  // how often a step had no token for a sequence because the mask was late
  MaskTimes times = {};
};

// A thread pool that computes masks. Half of the threads take only filters that are quick on average, so that
// slow filters cannot delay quick ones; the other threads take the job that has waited longest. Call start(),
// wait() and wait_for_any() from one thread.
class MaskWorkers {
 public:
  explicit MaskWorkers(int64_t vocab) : vocab_(vocab) {}
  ~MaskWorkers();  // stops all masks and waits for running filters
  MaskWorkers(const MaskWorkers&) = delete;
  MaskWorkers& operator=(const MaskWorkers&) = delete;

  // The first call creates the threads. kOutOfMemory: the system cannot create a thread.
  Status open();
  void start(std::span<const std::shared_ptr<TokenMask>> masks);
  // Waits for the mask, at most until `until`. Returns whether it is finished.
  bool wait(const TokenMask& mask, std::chrono::steady_clock::time_point until);
  // Waits until one of the masks is finished, at most until `until`.
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
  std::vector<std::shared_ptr<TokenMask>> under_way_;  // the job of each thread
  const TokenMask* awaited_ = nullptr;
  bool awaits_any_ = false, end_ = false;
  int64_t started_ = 0;
  MaskTimes times_;
  std::vector<WorkerThread> threads_;  // created by open()
};

}  // namespace sluice
