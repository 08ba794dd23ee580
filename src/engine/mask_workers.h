// Threads that ask filters for the allowed tokens while the engine runs steps.
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

// The time that the engine's thread waits for all masks of one step together.
constexpr std::chrono::milliseconds kMaskWait{5};

// The filter of one sequence, and its mask: the tokens allowed next.
class TokenMask {
 public:
  // The filter receives the tokens after the first `heard` tokens, which are the prompt.
  TokenMask(std::shared_ptr<TokenFilter> filter, int64_t heard) : filter_(std::move(filter)), heard_(heard) {}

  // Returns whether the mask for these tokens has yet to be made; if so, pass this object to
  // MaskWorkers::start(). The previous mask must be made. Masks behind `drafts` are made as far as the filter allows the drafts.
  bool begin(std::span<const int32_t> tokens, std::span<const int32_t> drafts = {});
  bool made() const { return made_.load(std::memory_order_acquire); }
  // The result is no longer needed.
  void stop() { stop_.request_stop(); }
  // Valid when the mask is made. If the status is ok, at least one of bits() is set.
  const Status& status() const { return status_; }
  std::span<const uint32_t> bits() const { return of_row(0); }
  // The number of masks: one for the tokens, and one behind each draft that the filter allows. What is sampled behind another draft is
  // discarded.
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
      behind_ = -1;  // tokens of the sequence: passed to the filter, and covered by the mask
  std::vector<int32_t> unheard_, drafts_;
  int64_t rows_ = 1;
  std::vector<uint32_t> bits_;
  Status status_;
  std::chrono::steady_clock::duration spent_{0}, last_{0};  // on all masks so far, and on the last one
  int64_t made_count_ = 0;
  std::atomic<bool> made_ = false;
};

// Histogram of the time that masks took.
struct MaskTimes {
  static constexpr std::array<double, 12> kBounds = {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005,
                                                     0.01,   0.02,   0.05,   0.1,   0.2,   0.5};  // seconds
  std::array<int64_t, kBounds.size() + 1> counts =
      {};  // by the first bound not exceeded; the last counts the rest
  double seconds = 0;
};

// Counts since the engine was created.
struct MaskCounts {
  int64_t steps_sat_out = 0;  // once per sequence and step in which its mask was late
  MaskTimes times = {};
};

// Half of the threads take only filters that are quick on average, so that slow filters cannot delay the
// quick ones however many there are; the other threads take the job that has waited longest. Call start(),
// wait() and wait_for_any() from one thread.
class MaskWorkers {
 public:
  explicit MaskWorkers(int64_t vocab) : vocab_(vocab) {}
  ~MaskWorkers();  // stops all masks and waits for the running ones
  MaskWorkers(const MaskWorkers&) = delete;
  MaskWorkers& operator=(const MaskWorkers&) = delete;

  // Creates the threads at the first call. kOutOfMemory: the system has no thread left.
  Status open();
  void start(std::span<const std::shared_ptr<TokenMask>> masks);
  // Returns whether the mask is made, after waiting at most until `until`.
  bool wait(const TokenMask& mask, std::chrono::steady_clock::time_point until);
  // Waits until one of the masks is made, at most until `until`.
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
  std::vector<WorkerThread> threads_;  // started by open(), on the caller's thread
};

}  // namespace sluice
