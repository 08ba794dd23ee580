// The exchange of partial sums in a cluster whose CTAs split k.
//
// Each CTA finishes a share of the sums. It receives the other CTAs' partial sums of its share in shared memory, in its inbox, and adds
// them in the order of the splits. So the bits do not depend on the order of arrival. The steps of a CTA:
//
//   1. One thread initialises the barrier of the inbox for one arrival; barrier_visible() and cluster_arrive() follow.
//   2. One thread calls expect() with the bytes that the other CTAs send.
//   3. cluster_wait(): now the peer CTAs run, and their barriers are initialised.
//   4. For each other CTA: of(rank), then store() by threads or send_by_warp().
//   5. wait(), then the sums of its own share.
//
// A CTA may exit after its stores, but not before its send_by_warp() copies have arrived: they read their source until then.
#pragma once
#include <cstdint>

#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/mbarrier.cuh"

namespace sluice::cuda::tile {

struct SplitInbox {
  uint32_t sums;      // address of the received partial sums
  uint32_t received;  // address of the mbarrier that counts their bytes

  // The same inbox in the CTA of this rank.
  __device__ __forceinline__ SplitInbox of(uint32_t rank) const {
    return {remote_address(sums, rank), remote_address(received, rank)};
  }
  // The barrier's only arrival of a phase, by one thread.
  __device__ __forceinline__ void expect(uint32_t bytes) const { barrier_expect(received, bytes); }
  // Returns when all expected bytes of the phase have arrived.
  __device__ __forceinline__ void wait(uint32_t parity = 0) const { barrier_wait(received, parity); }

  // Stores a value of 4, 8 or 16 bytes into a peer CTA's inbox, `at` bytes from its start, by the calling thread.
  template <class Value>
  __device__ __forceinline__ void store(uint32_t at, const Value& value) const {
    store_remote(sums + at, value, received);
  }
  // Copies to a peer CTA's inbox by one lane of a converged warp, in one piece; cluster.cuh says what the source needs.
  __device__ __forceinline__ void send_by_warp(uint32_t at, const void* from, uint32_t bytes) const {
    tile::send_by_warp(sums + at, from, bytes, received);
  }
};

// The rank `i` places after `rank`, for 0 < i < ranks. A CTA sends to the rank after its own first, so that no CTA receives all
// messages at once.
__device__ __forceinline__ int rank_after(int rank, int i, int ranks) {
  return rank + i < ranks ? rank + i : rank + i - ranks;
}

__device__ __forceinline__ void add_to(float2& total, const float2& more) {
  total.x += more.x;
  total.y += more.y;
}

}  // namespace sluice::cuda::tile
