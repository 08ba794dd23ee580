// A ring of stages in shared memory, between the producers that fill the stages and the consumers that read them.
//
// Each stage has two mbarriers (mbarrier.cuh). `full` completes when all producers have arrived and all
// expected bytes are in the stage. `empty` completes when all consumers have released the stage. Every
// producer and consumer has a RingPlace of its own and steps through the stages in the same order.
//
// The functions get barriers by address and have no state, so a ring costs only its mbarriers.
// The user of a ring decides where the stages are, how large they are and what is in them.
#pragma once
#include <cstdint>

#include "backends/cuda/tile/mbarrier.cuh"

namespace sluice::cuda::tile {

// A stage of a ring, and the parity of its current phase.
struct RingPlace {
  uint32_t stage = 0, parity = 0;
  __device__ __forceinline__ void step(uint32_t stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  // Advances by `steps` stages; steps <= stages.
  __device__ __forceinline__ void step_by(uint32_t steps, uint32_t stages) {
    stage += steps;
    if (stage >= stages) stage -= stages, parity ^= 1;
  }
};

struct Ring {
  static constexpr uint32_t kBytes = sizeof(uint64_t);  // per barrier
  uint32_t full, empty;  // addresses of the first stage's barriers; the other stages' barriers follow them

  __device__ __forceinline__ uint32_t full_of(uint32_t stage) const { return full + kBytes * stage; }
  __device__ __forceinline__ uint32_t empty_of(uint32_t stage) const { return empty + kBytes * stage; }

  // Called by one thread per stage; barrier_visible() and a CTA barrier must follow. filled: arrivals
  // that complete the stage's full barrier. released: arrivals that complete its empty barrier.
  __device__ __forceinline__ void init(uint32_t stage, uint32_t filled, uint32_t released) const {
    barrier_init(full_of(stage), filled);
    barrier_init(empty_of(stage), released);
  }
  // init() by one lane of a converged warp. Called by all lanes.
  __device__ __forceinline__ void init_by_warp(uint32_t stage, uint32_t filled, uint32_t released) const {
    barrier_init_by_warp(full_of(stage), filled);
    barrier_init_by_warp(empty_of(stage), released);
  }

  // For producers: waits until the consumers have released the stage. Does not wait in the first round through the ring.
  __device__ __forceinline__ void acquire(const RingPlace& at) const {
    barrier_wait(empty_of(at.stage), at.parity ^ 1);
  }
  __device__ __forceinline__ void acquire_by_warp(const RingPlace& at) const {
    barrier_wait_by_warp(empty_of(at.stage), at.parity ^ 1);
  }
  // For producers: one arrival by the warp that also expects bytes. Returns the barrier at which copies to the stage are counted.
  __device__ __forceinline__ uint32_t expect_by_warp(uint32_t stage, uint32_t bytes) const {
    barrier_expect_by_warp(full_of(stage), bytes);
    return full_of(stage);
  }

  // For consumers: waits until the stage is full.
  __device__ __forceinline__ void wait(const RingPlace& at) const {
    barrier_wait(full_of(at.stage), at.parity);
  }
  __device__ __forceinline__ void wait_by_warp(const RingPlace& at) const {
    barrier_wait_by_warp(full_of(at.stage), at.parity);
  }
  // For consumers: one arrival by the calling lane, unless `predicate` is 0, which must depend on the lane's loads (arrive_by_lane()).
  __device__ __forceinline__ void release(uint32_t stage, uint32_t predicate = 1) const {
    arrive_by_lane(empty_of(stage), predicate);
  }
};

// The barriers of a ring in shared memory.
template <int kStages>
struct RingBarriers {
  uint64_t full[kStages], empty[kStages];

  __device__ __forceinline__ Ring ring() const { return at(shared_address(this)); }
  // The ring whose RingBarriers are at this shared memory address.
  static __device__ __forceinline__ Ring at(uint32_t address) {
    return {address, address + kStages * Ring::kBytes};
  }
  // Initializes all barriers. Called by one thread.
  __device__ __forceinline__ void init(uint32_t filled, uint32_t released) const {
    for (int s = 0; s < kStages; ++s) ring().init(s, filled, released);
  }
};

}  // namespace sluice::cuda::tile
