// Devices of one process that run a model together, each with a slice of it.
#pragma once
#include <atomic>
#include <mutex>
#include <string>

#include "base/status.h"

namespace sluice {

// A device's rank is its index in the list that made the group. Collective operations (ops/all_reduce_norm.h) run on each device's own
// streams, in the same order on every rank. On a device that runs work immediately, each rank needs its own host thread. The devices must
// outlive the group; a device is in at most one group.
class Group {
 public:
  virtual ~Group() = default;
  virtual int ranks() const = 0;
  // Aborts all collective operations of the group on all ranks, including running ones; `rank` is the rank that failed. From then
  // on each device of the group returns status() from its waits (and, on a device that runs work immediately, from launches). Any thread may
  // call stop(); only the first call counts.
  virtual void stop(int rank, const Status& why) = 0;
  // Ok unless the group is stopped; then the failure.
  virtual Status status() const = 0;
  // Makes a stopped group usable again. No other thread may use the group's devices meanwhile.
  virtual Status recover() = 0;
};

struct GroupOptions {
  int64_t row_bytes = 32768;  // size of the largest row that an operation exchanges
};

// The first failure of a group.
class GroupFault {
 public:
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  // Returns false if another failure came first.
  bool set(int rank, const Status& why) {
    const std::lock_guard lock(mutex_);
    if (stopped()) return false;
    status_ = {why.code, "rank " + std::to_string(rank) + ": " + why.message};
    stopped_.store(true, std::memory_order_release);
    return true;
  }
  Status status() const {
    if (!stopped()) return {};
    const std::lock_guard lock(mutex_);
    return status_;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    status_ = {};
    stopped_.store(false, std::memory_order_release);
  }

 private:
  std::atomic<bool> stopped_{false};
  mutable std::mutex mutex_;
  Status status_;
};

}  // namespace sluice
