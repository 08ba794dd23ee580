// A CTA's passes over a row of logits for top_logprobs_row_sm90.cu.
//
// Accuracy of the sum: a thread keeps its sum relative to a base. A larger logit becomes the new
// base only if it exceeds the base by more than kRoom. So the sum is rescaled rarely, and every
// rescaling shrinks the old sum with all its errors by at least e^kRoom. Four terms at a time
// are added in f32, everything else in double. ex2 and its argument lose up to 2^-20 of a term.
#pragma once
#include <cstdint>

#include "backends/cuda/sampling/sample_weights.cuh"

namespace sluice::cuda::logprobs {

constexpr int kThreads = 1024, kWarp = 32, kWarps = kThreads / kWarp;
constexpr int kEach = 4;  // logits per access
constexpr int kAtOnce = 4;
constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr uint64_t kNowhere = ~uint64_t{0};  // after all places
constexpr float kRoom = 8.f;

// The maximum number of logits that one thread reads.
constexpr int64_t share_of(int64_t vocab) {
  constexpr int64_t kStep = int64_t{kThreads} * kEach;
  return (vocab + kStep - 1) / kStep * kEach;
}

struct Row {
  const float* x;
  int vocab;
  bool wide;  // x is a multiple of 16 bytes

  // Loads logits i to i + 3. NaN and logits past the end of the row become -inf.
  __device__ __forceinline__ void load(float (&v)[kEach], int i) const {
    if (wide && i + kEach <= vocab) {
      const float4 four = *reinterpret_cast<const float4*>(x + i);
      v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else {
#pragma unroll
      for (int j = 0; j < kEach; ++j) v[j] = i + j < vocab ? x[i + j] : -INFINITY;
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) v[j] = fmaxf(v[j], -INFINITY);
  }
  // Calls f(logits, id of the first) for each of the thread's groups, with ascending ids.
  template <class F>
  __device__ __forceinline__ void for_groups(F f) const {
    constexpr int kStep = kThreads * kEach;
    for (int64_t first = int64_t{threadIdx.x} * kEach; first < vocab; first += kAtOnce * kStep) {
      float v[kAtOnce][kEach];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) load(v[k], static_cast<int>(first + k * kStep));
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (first + k * kStep < vocab) f(v[k], static_cast<int>(first + k * kStep));
    }
  }
};

// What one thread has found in a row.
struct Seen {
  float base;   // -inf: no finite logit yet
  double sum;   // sum of e^(x - base)
  int before;   // tokens that rank before the sampled token
  float best;   // the largest logit
  int best_id;  // the lowest id with that logit; -1: the thread has no logits
};

__device__ __forceinline__ Seen pass(const Row& row, int token, float logit) {
  Seen s{.base = -INFINITY, .sum = 0, .before = 0, .best = -INFINITY, .best_id = -1};
  row.for_groups([&](const float(&v)[kEach], int id) {
    const float most = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]));
    if (most > s.best || s.best_id < 0) {
      s.best = most;
#pragma unroll
      for (int j = kEach - 1; j >= 0; --j)
        if (v[j] == most) s.best_id = id + j;
    }
    if (most > s.base + kRoom) {
      s.sum *= static_cast<double>(draw::power_of_two((s.base - most) * draw::kLog2E));
      s.base = most;
    }
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      sum += v[j] > -INFINITY ? draw::power_of_two((v[j] - s.base) * draw::kLog2E) : 0.f;
      s.before += id + j < row.vocab && (v[j] > logit || (v[j] == logit && id + j < token));
    }
    s.sum += static_cast<double>(sum);
  });
  return s;
}

struct Totals {
  float largest;
  double sum;  // sum of e^(x - largest); meaningless if the largest is not finite
  int before;
};

// Shared memory of a CTA, before its list of places.
struct Scratch {
  float largest[kWarps];
  double sum[kWarps];
  int before[kWarps];
  uint32_t listed;
};
constexpr size_t kScratchBytes = (sizeof(Scratch) + 15) / 16 * 16;

// Totals over all threads, valid in the first thread, with the same bits in every run.
__device__ __forceinline__ Totals totals_of(const Seen& seen, Scratch& scratch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  float largest = seen.best;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
  if (lane == 0) scratch.largest[warp] = largest;
  if (threadIdx.x == 0) scratch.listed = 0;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, scratch.largest[w]);
  const bool counts = seen.base > -INFINITY && isfinite(largest);
  double sum = counts ? seen.sum * exp(static_cast<double>(seen.base) - static_cast<double>(largest)) : 0;
  int before = seen.before;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, step);
    before += __shfl_xor_sync(kAllLanes, before, step);
  }
  if (lane == 0) scratch.sum[warp] = sum, scratch.before[warp] = before;
  __syncthreads();
  sum = 0, before = 0;
  for (int w = 0; w < kWarps; ++w) sum += scratch.sum[w], before += scratch.before[w];
  return {.largest = largest, .sum = sum, .before = before};
}

// The `top`-th smallest of the threads' places; if fewer threads have a place, a number after all places. Called by all threads.
__device__ __forceinline__ uint64_t threshold_of(uint64_t own, int top) {
  uint64_t least = 0;  // the result is at least this
  for (int bit = 63; bit >= 0; --bit) {
    const uint64_t trial = least | ((uint64_t{1} << bit) - 1);
    if (__syncthreads_count(own <= trial) < top) least |= uint64_t{1} << bit;
  }
  return least;
}

// Lists places in any order, including the first `top` places of the row, or all if the row has fewer. Returns their
// number. The list must hold min(vocab, top * share_of(vocab)) places. `listed` must be 0 and visible to all threads.
__device__ __forceinline__ int list_first(const Row& row, const Seen& seen, int top, uint64_t* list,
                                          uint32_t* listed) {
  const uint64_t own = seen.best_id < 0 ? kNowhere : draw::place_of(seen.best, seen.best_id);
  const uint64_t last = threshold_of(own, top);
  // `top` threads have a place at or before `last`. So the first `top` places of the
  // row are all at or before `last`, and the other threads have only later places.
  if (own <= last && own != kNowhere)
    row.for_groups([&](const float(&v)[kEach], int id) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const uint64_t place = draw::place_of(v[j], id + j);
        if (id + j < row.vocab && place <= last) list[atomicAdd(listed, 1u)] = place;
      }
    });
  __syncthreads();
  return static_cast<int>(*listed);
}

}  // namespace sluice::cuda::logprobs
