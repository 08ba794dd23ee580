#include "engine/mask_workers.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <thread>

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

// Half as many threads as processors, so that steps have processors too; at least two, one per kind
// (Takes).
int threads_wanted() {
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 2, 2u, 16u));
}

bool any_token(std::span<const uint32_t> bits, int64_t vocab) {
  const auto whole = static_cast<ptrdiff_t>(vocab / 32);
  const bool some = std::any_of(bits.begin(), bits.begin() + whole, [](uint32_t word) { return word != 0; });
  return some || (vocab % 32 != 0 && (bits.back() & ((1u << (vocab % 32)) - 1)) != 0);
}

}  // namespace

bool TokenMask::begin(std::span<const int32_t> tokens, std::span<const int32_t> drafts) {
  if (mask_after_ == std::ssize(tokens)) return false;
  mask_after_ = std::ssize(tokens);
  for (; heard_ < std::ssize(tokens); ++heard_) unheard_.push_back(tokens[static_cast<size_t>(heard_)]);
  drafts_.assign(drafts.begin(), drafts.end());
  made_.store(false, std::memory_order_relaxed);
  return true;
}

Status TokenMask::request_mask(int64_t vocab) {
  const std::stop_token stop = stop_.get_token();
  for (const int32_t id : unheard_) SLUICE_TRY(filter_->accept(id, stop));
  unheard_.clear();
  const auto words = static_cast<size_t>((vocab + 31) / 32);
  bits_.resize(words * (1 + drafts_.size()));
  rows_ = 1;
  const auto first = std::span(bits_).first(words);
  SLUICE_TRY(filter_->allowed(first, stop));
  if (!any_token(first, vocab)) return invalid("the grammar allows no next token");
  try {
    if (!drafts_.empty()) request_masks_after_drafts(vocab);
  } catch (const std::bad_alloc&) {
    // Out of memory only means that fewer drafts have a mask.
  }
  return {};
}

// Ignores the filter's errors, because the draft that causes the error may be rejected.
void TokenMask::request_masks_after_drafts(int64_t vocab) {
  const std::stop_token stop = stop_.get_token();
  const std::unique_ptr<TokenFilter> filter = filter_->copy();
  const auto words = static_cast<size_t>((vocab + 31) / 32);
  for (const int32_t id : drafts_) {
    const auto before = std::span(bits_).subspan(static_cast<size_t>(rows_ - 1) * words, words);
    if ((before[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) == 0 || !filter->accept(id, stop).ok())
      return;
    const auto here = std::span(bits_).subspan(static_cast<size_t>(rows_) * words, words);
    if (!filter->allowed(here, stop).ok() || !any_token(here, vocab)) return;
    ++rows_;
  }
}

void TokenMask::make(int64_t vocab) {
  const auto begin = Clock::now();
  try {
    if (!stop_.stop_requested()) status_ = request_mask(vocab);
  } catch (const std::bad_alloc&) {
    status_ = out_of_memory("out of memory while computing the grammar's mask");
  }
  last_ = Clock::now() - begin;
  spent_ += last_;
  ++made_count_;
}

MaskWorkers::~MaskWorkers() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
    for (const auto& mask : under_way_)
      if (mask) mask->stop();
  }
  wake_.notify_all();
  for (WorkerThread& thread : threads_) thread.join();
}

Status MaskWorkers::open() {
  if (!threads_.empty()) return {};
  const int wanted = threads_wanted();
  under_way_.resize(static_cast<size_t>(wanted));
  try {
    // The threads created first accept the jobs of all filters, so that all jobs are done even if the system
    // grants fewer threads.
    for (int i = 0; i < wanted; ++i)
      threads_.emplace_back([this, i, takes = i < (wanted + 1) / 2 ? Takes::kAll : Takes::kQuick] {
        work(static_cast<size_t>(i), takes);
      });
  } catch (const std::system_error& error) {
    if (threads_.empty())
      return out_of_memory(std::string("structured output: wanted a thread, found none: ") + error.what());
  }
  return {};
}

void MaskWorkers::start(std::span<const std::shared_ptr<TokenMask>> masks) {
  if (masks.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& mask : masks) (mask->is_quick() ? quick_ : slow_).push_back({mask, started_++});
  }
  wake_.notify_all();
}

bool MaskWorkers::wait(const TokenMask& mask, Clock::time_point until) {
  if (mask.made()) return true;
  std::unique_lock lock(mutex_);
  awaited_ = &mask;
  made_.wait_until(lock, until, [&] { return mask.made(); });
  awaited_ = nullptr;
  return mask.made();
}

void MaskWorkers::wait_for_any(std::span<const std::shared_ptr<TokenMask>> masks, Clock::time_point until) {
  const auto any = [&] {
    return std::any_of(masks.begin(), masks.end(), [](const auto& mask) { return mask->made(); });
  };
  std::unique_lock lock(mutex_);
  awaits_any_ = true;
  made_.wait_until(lock, until, any);
  awaits_any_ = false;
}

MaskTimes MaskWorkers::times() const {
  const std::lock_guard lock(mutex_);
  return times_;
}

// The queue with the next job for this kind of thread; null if there is no such job.
std::deque<MaskWorkers::Job>* MaskWorkers::queue_for(Takes takes) {
  if (takes == Takes::kQuick || slow_.empty()) return quick_.empty() ? nullptr : &quick_;
  if (quick_.empty()) return &slow_;
  return quick_.front().number < slow_.front().number ? &quick_ : &slow_;
}

void MaskWorkers::work(size_t thread, Takes takes) {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return end_ || queue_for(takes); });
    if (end_) return;
    std::deque<Job>* const queue = queue_for(takes);
    std::shared_ptr<TokenMask> mask = std::move(queue->front().mask);
    queue->pop_front();
    under_way_[thread] = mask;
    lock.unlock();
    mask->make(vocab_);
    lock.lock();
    under_way_[thread] = nullptr;
    if (!mask->stop_.stop_requested()) note(*mask);
    mask->made_.store(true, std::memory_order_release);
    if (awaits_any_ || awaited_ == mask.get()) made_.notify_one();
    lock.unlock();
    mask.reset();  // unlocked, because destroying the filter may take a while
    lock.lock();
  }
}

void MaskWorkers::note(const TokenMask& mask) {
  const double seconds = std::chrono::duration<double>(mask.last_).count();
  const auto& bounds = MaskTimes::kBounds;
  ++times_.counts[static_cast<size_t>(std::lower_bound(bounds.begin(), bounds.end(), seconds) -
                                      bounds.begin())];
  times_.seconds += seconds;
}

}  // namespace sluice
