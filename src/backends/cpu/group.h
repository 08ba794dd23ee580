// A group of CPU devices: ranks read each other's rows in place, between two barriers.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

#include "backends/cpu/queue.h"
#include "dispatch/group.h"
#include "ops/all_reduce_norm.h"

namespace sluice::cpu {

class SharedGroup {
 public:
  explicit SharedGroup(int ranks) : ranks_(ranks) {}
  int ranks() const { return ranks_; }
  bool stopped() const { return fault_.stopped(); }
  Status status() const { return fault_.status(); }
  void stop(int rank, const Status& why);
  void recover();

  // Publishes this rank's x and waits until all ranks have published theirs. Returns
  // false if the group is stopped. The rows may be read until done() is called.
  bool begin(int rank, const AllReduceNorm::Problem& problem, const Tensor& x);
  // Waits until no rank reads this rank's x. Returns false if the group is stopped.
  bool done() { return arrive(); }
  const Tensor& x_of(int rank) const { return shown_[static_cast<size_t>(rank)].x; }

 private:
  struct Shown {
    AllReduceNorm::Problem problem;
    Tensor x;
  };
  // Waits until all ranks have arrived. Returns false if the group is stopped.
  bool arrive();

  const int ranks_;
  GroupFault fault_;
  std::array<Shown, AllReduceNorm::kRanksMax> shown_;
  // Arrivals at all barriers so far. A stop adds more arrivals than any barrier waits for.
  alignas(64) std::atomic<uint64_t> arrived_{0};
};

// The rank of a device in its group.
struct Member {
  SharedGroup* group = nullptr;
  int rank = 0;
};

// The type of every queue of a CpuDevice. Queue has no member for groups, so only collective kernels depend on them.
struct GroupQueue : Queue {
  const Member* member = nullptr;  // null: the device is in no group
};
inline GroupQueue& group_queue_of(Stream stream) { return static_cast<GroupQueue&>(queue_of(stream)); }

// The failure that ended the queue's group; ok if there is none.
inline Status group_status(const GroupQueue& queue) {
  return queue.member && queue.member->group->stopped() ? queue.member->group->status() : Status{};
}

}  // namespace sluice::cpu
