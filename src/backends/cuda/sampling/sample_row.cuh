// A CTA's slice of a row of logits, and the data that the CTAs of a row's cluster exchange.
#pragma once
#include <cstdint>

#include "backends/cuda/sampling/sample_weights.cuh"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/vector.cuh"

namespace sluice::cuda::draw {

constexpr int kBlocks = 8, kThreads = 512, kWarp = 32, kWarps = kThreads / kWarp;
constexpr int kGroups = kWarps, kBins = kGroups * kWarp;  // kGroups: groups of bins; one warp adds up a group
constexpr int kList = 256;                                // maximum tokens in a sorted list
constexpr int kBinades = 64;
constexpr uint32_t kAllLanes = 0xffffffffu;

// The bin that find() has found, and the sums above it.
struct Found {
  int bin;  // kEverything: all tokens of the histogram fit into a list
  uint32_t count, count_above;
  double mass_above;
};
constexpr int kEverything = -2;

// Shared memory of a CTA. Arrays of kBlocks have one element per CTA of the cluster, which that CTA writes in all CTAs.
struct Scratch {
  // number of tokens; sums of the high and of the low halves of their units
  uint32_t count[kBins], high[kBins], low[kBins];
  uint64_t mine[kList];  // places of this CTA's listed tokens, unordered
  union {
    uint64_t place[kList];                // places of all CTAs' listed tokens, finally in order
    uint32_t binades[kBlocks][kBinades];  // before any place is known
  };
  union {
    double running[kList];  // sums of weights up to each place
    uint32_t rank[kList];   // before the sums
  };
  double group_mass[kBlocks][kGroups];
  uint32_t group_count[kBlocks][kGroups];
  float largest[kBlocks];
  double plain[kBlocks], tempered[kBlocks], shared_mass[kBlocks];
  uint64_t least[kBlocks], most[kBlocks];
  uint32_t list_count[kBlocks];
  uint32_t mine_count;
  int chosen, reach;
  Found found;
  double of_warp[kWarps];
  uint64_t least_of_warp[kWarps], most_of_warp[kWarps];
};
constexpr size_t kScratchBytes = (sizeof(Scratch) + 15) / 16 * 16;

// Stores 4 or 8 bytes at the same address in each CTA of the cluster. Called by lanes 0 to 7 of one warp, lane r for CTA r.
template <class T>
__device__ __forceinline__ void publish(const T* place, T value, int peer) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  const uint32_t to = tile::remote_address(tile::shared_address(place), static_cast<uint32_t>(peer));
  uint32_t words[sizeof(T) / 4];
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) tile::store_remote(to + 4 * i, words[i]);
}
template <class T>
__device__ __forceinline__ T read_peer(const T* place, int peer) {
  const uint32_t from = tile::remote_address(tile::shared_address(place), static_cast<uint32_t>(peer));
  uint32_t words[sizeof(T) / 4];
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i)
    words[i] = __float_as_uint(tile::load_remote(from + 4 * i));
  T value;
  memcpy(&value, words, sizeof(T));
  return value;
}

// Rounds of the cluster barrier. Each stage of the kernel is
//
//   peers_have_read()  ...  writes that peers see  ...  cluster_sync()  ...  reads  ...  have_read() or have_read_last()
//
// So between stages an arrival is always pending. have_read() arrives with release: this CTA's reads come before a
// peer's next write to the same data. have_read_last() arrives relaxed and waits for nothing. Use it if no CTA
// writes that data before another have_read(), and as the first arrival of all, which only says that this CTA runs.
__device__ __forceinline__ void have_read() {
  __syncwarp();  // the barrier counts whole warps
  tile::cluster_publish();
}
__device__ __forceinline__ void have_read_last() {
  __syncwarp();
  tile::cluster_arrive();
}
__device__ __forceinline__ void peers_have_read() {
  __syncwarp();
  tile::cluster_wait();
}
__device__ __forceinline__ void cluster_sync() {
  have_read();
  peers_have_read();
}

enum class Where : uint8_t { kShared, kGlobal };

// kShared: `data` is in shared memory, with -inf for NaN and after the last logit. kGlobal: `data` is the caller's row.
template <class T, Where kWhere>
struct Slice {
  static constexpr int kEach = 16 / static_cast<int>(sizeof(T));  // logits per 16-byte access
  const T* data;
  int first, count;  // token ids; count may be 0
  bool wide;         // kGlobal: groups begin at multiples of 16 bytes

  __device__ __forceinline__ void load(float (&v)[kEach], int i) const {
    if constexpr (kWhere == Where::kShared) {
      tile::load(v, data + i);
    } else if (wide && i + kEach <= count) {
      tile::load(v, data + i);
    } else {
#pragma unroll
      for (int j = 0; j < kEach; ++j) v[j] = i + j < count ? tile::to_f32(data[i + j]) : -INFINITY;
    }
    if constexpr (kWhere == Where::kGlobal) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) v[j] = fmaxf(v[j], -INFINITY);
    }
  }
  // Calls f(logits, id of the first) for each group of kEach logits; logits past the end are -inf.
  template <class F>
  __device__ __forceinline__ void for_groups(F f) const {
    for (int i = static_cast<int>(threadIdx.x) * kEach; i < count; i += kThreads * kEach) {
      float v[kEach];
      load(v, i);
      f(v, first + i);
    }
  }
  template <class F>
  __device__ __forceinline__ void for_each(F f) const {
    for_groups([&](const float(&v)[kEach], int id) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) f(v[j], id + j);
    });
  }
};

// Copies a slice to shared memory, with -inf for NaN, and returns the largest logit that this thread has copied.
template <class T>
__device__ __forceinline__ float take(T* to, const Slice<T, Where::kGlobal>& from) {
  constexpr int kEach = Slice<T, Where::kGlobal>::kEach, kAtOnce = 6, kStep = kThreads * kEach;
  const auto keep = [&](float(&v)[kEach], int i) {
    float most = -INFINITY;
#pragma unroll
    for (int j = 0; j < kEach; ++j) v[j] = fmaxf(v[j], -INFINITY), most = fmaxf(most, v[j]);
    tile::store(to + i, v);
    return most;
  };
  float most = -INFINITY;
  int i = static_cast<int>(threadIdx.x) * kEach;
  for (; from.wide && i + (kAtOnce - 1) * kStep + kEach <= from.count; i += kAtOnce * kStep) {
    uint4 words[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) words[k] = *reinterpret_cast<const uint4*>(from.data + i + k * kStep);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      float v[kEach];
      tile::load(v, reinterpret_cast<const T*>(words + k));
      most = fmaxf(most, keep(v, i + k * kStep));
    }
  }
  for (; i < from.count; i += kStep) {
    float v[kEach];
    from.load(v, i);
    most = fmaxf(most, keep(v, i));
  }
  return most;
}

// The sum over the CTA, with the same bits in every thread.
__device__ __forceinline__ double block_sum(double value, double* of_warp) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  __syncthreads();  // an earlier call may still read of_warp
  if (lane == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += of_warp[w];
  return sum;
}
__device__ __forceinline__ float block_max(float value, double* of_warp) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  if (lane == 0) of_warp[threadIdx.x / kWarp] = static_cast<double>(value);
  __syncthreads();
  double most = of_warp[0];
  for (int w = 1; w < kWarps; ++w) most = fmax(most, of_warp[w]);
  return static_cast<float>(most);
}
__device__ __forceinline__ double sum_of(const double (&of_block)[kBlocks]) {
  double sum = 0;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) sum += of_block[b];
  return sum;
}

}  // namespace sluice::cuda::draw
