// A group of GPUs whose kernels write into each other's memory.
#pragma once
#include <cstdint>

#include "backends/cuda/queue.h"
#include "dispatch/group.h"
#include "ops/all_reduce_norm.h"

namespace sluice::cuda {

// Memory through which kernels exchange rows. Every rank has a window, to which the other ranks
// write. In a window a row is words of 16 bytes: 8 bytes of the row in two halves, each
// followed by the number of the exchange (tile/exchange.cuh). A CTA uses one lane of the
// windows. It counts its exchanges in device memory, so that a captured launch can be replayed.
struct Wire {
  // The number of latest exchanges whose words a lane keeps, so that no rank overwrites
  // words that another rank may still read (tile/exchange.cuh explains why four suffice).
  static constexpr int kDepth = 4;
  // Parts of x and sums have separate regions, because a window has both for the same exchange.
  static constexpr int kRegions = 2;
  uint4* window = nullptr;                           // this rank's
  uint4* windows_of[AllReduceNorm::kRanksMax] = {};  // all ranks' windows, as this rank addresses them
  // [lanes], this rank's counters; null if there is one rank
  uint32_t* exchanges = nullptr;
  const uint32_t* stopped = nullptr;  // host memory; not 0: do not wait for other ranks
  int rank = 0, ranks = 1, lanes = 0, row_words = 0;
};

// A device's rank in its group.
struct Member {
  Wire wire;
  int64_t row_bytes = 0;
  const GroupFault* fault = nullptr;
};

// The type of every queue of a CudaDevice. Queue has no member for groups, so only collective kernels depend on them.
struct GroupQueue : Queue {
  const Member** member = nullptr;  // the device's; points to null if the device is in no group
};
inline GroupQueue& group_queue_of(Stream stream) { return static_cast<GroupQueue&>(queue_of(stream)); }
inline const Member* member_of(const GroupQueue& queue) { return *queue.member; }

// The failure that ended the queue's group; ok if there is none.
inline Status group_status(const GroupQueue& queue) {
  const Member* member = member_of(queue);
  return member && member->fault->stopped() ? member->fault->status() : Status{};
}

}  // namespace sluice::cuda
