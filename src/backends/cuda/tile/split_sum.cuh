// The exchange of partial sums in a cluster whose CTAs split k.
//
// Every CTA adds up a share of the sums. It receives the other CTAs' partial sums of that share in its inbox, in shared
// memory, and adds them in the order of the splits. So the result does not depend on the order of arrival. The steps of a CTA:
//
//  1. One thread initializes the inbox's barrier for one arrival; barrier_visible() and cluster_arrive() follow.
//   2. One thread calls expect() with the bytes that the other CTAs send to this one.
//   3. cluster_wait(): after it, the peer CTAs run, and their barriers are initialized.
//   4. For each other CTA: of(rank), then store() by threads or send_by_warp().
//   5. wait(), then the sums of this CTA's share.
//
// A CTA may exit after its stores, but not before its send_by_warp() copies have arrived, because these read their source until then.
#pragma once
#include <cstdint>

#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/mbarrier.cuh"

namespace sluice::cuda::tile {

struct SplitInbox {
  uint32_t sums;      // address of the received partial sums
  uint32_t received;  // address of the mbarrier that counts their bytes

  // The inbox of the CTA with this rank.
  __device__ __forceinline__ SplitInbox of(uint32_t rank) const {
    return {remote_address(sums, rank), remote_address(received, rank)};
  }
  // Called by one thread per phase: the only arrival of the phase, with the bytes to expect.
  __device__ __forceinline__ void expect(uint32_t bytes) const { barrier_expect(received, bytes); }
  // Waits until all expected bytes of the phase have arrived.
  __device__ __forceinline__ void wait(uint32_t parity = 0) const { barrier_wait(received, parity); }

  // Stores a value of 4, 8 or 16 bytes to the inbox of a peer CTA, `at` bytes from its start. Called by single threads.
  template <class Value>
  __device__ __forceinline__ void store(uint32_t at, const Value& value) const {
    store_remote(sums + at, value, received);
  }
  // Copies bytes to the inbox of a peer CTA. Called by a converged warp. send_by_warp() in cluster.cuh says what the source needs.
  __device__ __forceinline__ void send_by_warp(uint32_t at, const void* from, uint32_t bytes) const {
    tile::send_by_warp(sums + at, from, bytes, received);
  }
};

// The i-th rank after `rank`, cyclically, for 0 < i < ranks. CTAs send to the ranks
// after their own in this order, so that no CTA receives all messages at once.
__device__ __forceinline__ int rank_after(int rank, int i, int ranks) {
  return rank + i < ranks ? rank + i : rank + i - ranks;
}

__device__ __forceinline__ void add_to(float2& total, const float2& more) {
  total.x += more.x;
  total.y += more.y;
}

}  // namespace sluice::cuda::tile
