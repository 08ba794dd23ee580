// The second launch of latent_attention_splits_sm90: partial results of one split of the keys of one row, for kHeads heads.
#pragma once
#include <cstdint>

#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/vector.cuh"

namespace sluice::cuda::latent {

constexpr int kHeads = 16, kKeys = 32;  // heads per CTA; keys per tile
// Floats of a partial result besides its latent: the largest score, the sum of weights, the number of keys.
constexpr int kScalars = 3;

constexpr int kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;
constexpr int kEach = kKeys / kWarps;  // keys per warp
constexpr uint32_t kAllLanes = 0xffffffffu;

struct Parameters {
  const void *q, *kv_b, *cache;
  const int32_t *page_table, *q_begin, *kv_len;
  void* y;
  int64_t q_stride, y_stride;  // elements between rows
  int64_t first, rows;         // rows of this call
  int64_t sequences, pages, page_size, pages_per_seq;
  int heads, rank, nope, rope, v_dim;
  int padded;  // rank + rope, rounded up to a multiple of the columns that a warp handles at once
  int64_t split_keys;
  int splits;
  float scale;
  float *queries, *latents,
      *scalars;     // [rows, heads, rank + rope], [rows, heads, splits, rank], [.., kScalars]
  bool wide_cache;  // rows of the cache are whole, aligned 16-byte chunks
};

// The sequence of a row, or -1. Called by all threads of the CTA.
__device__ __forceinline__ int64_t sequence_of(const Parameters& p, int64_t row, int64_t* slot) {
  if (threadIdx.x == 0) *slot = -1;
  __syncthreads();
  for (int64_t s = threadIdx.x; s < p.sequences; s += kThreads)
    if (row >= p.q_begin[s] && row < p.q_begin[s + 1]) *slot = s;
  __syncthreads();
  return *slot;
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

// Shared memory of attend(), besides the queries, [kHeads][padded], and the tile of keys, [kKeys][padded].
struct Scratch {
  // Scores, later weights. The padding puts rows in different banks.
  alignas(16) float weight[kKeys][kHeads + 4];
  float factor[kHeads];  // factor on the previous sums if a larger score appears
  float largest[kHeads], sum[kHeads];
  int64_t row[kKeys];  // row of the cache of each key; -1: absent
  int64_t sequence;
};
constexpr size_t kScratchBytes = (sizeof(Scratch) + 15) / 16 * 16;

// Copies the rows of a tile of keys. Zeros for absent rows, and past the end of a row.
template <class X>
__device__ __forceinline__ void fetch(const Parameters& p, const Scratch& scratch, X* tile) {
  const int width = p.rank + p.rope;
  constexpr int kChunk = 16 / static_cast<int>(sizeof(X));
  const X* const cache = static_cast<const X*>(p.cache);
  if (p.wide_cache) {
    const int chunks = p.padded / kChunk;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * chunks; i += kThreads) {
      const int key = i / chunks, at = i % chunks * kChunk;
      const int64_t row = scratch.row[key];
      uint4 words = make_uint4(0, 0, 0, 0);
      if (row >= 0 && at < width) words = *reinterpret_cast<const uint4*>(cache + row * width + at);
      *reinterpret_cast<uint4*>(tile + key * p.padded + at) = words;
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * p.padded; i += kThreads) {
      const int64_t row = scratch.row[i / p.padded];
      const int at = i % p.padded;
      tile[i] = row >= 0 && at < width ? cache[row * width + at] : tile::from_f32<X>(0.f);
    }
  }
}

// Adds up 4 * kStep values over the lanes. Every step halves the number of sums in a lane. With 64 sums, lane l ends with sums 2 l and 2 l + 1.
template <int kStep, int kCount>
__device__ __forceinline__ void halve(float (&sum)[kCount], int lane) {
  constexpr int kLeft = 2 * kStep;
  const bool upper = (lane & kStep) != 0;
#pragma unroll
  for (int j = 0; j < kLeft; ++j) {
    const float give = upper ? sum[j] : sum[j + kLeft], keep = upper ? sum[j + kLeft] : sum[j];
    sum[j] = keep + __shfl_xor_sync(kAllLanes, give, kStep);
  }
  if constexpr (kStep > 1) halve<kStep / 2>(sum, lane);
}

// Computes the scores of a tile of keys. A warp handles kEach keys and all heads; a lane handles pairs of columns.
template <class X>
__device__ __forceinline__ void score(const Parameters& p, Scratch& scratch, const float* queries,
                                      const X* tile) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, key = static_cast<int>(threadIdx.x) / kWarp * kEach;
  float sum[kHeads * kEach] = {};
  for (int column = 2 * lane; column < p.padded; column += 2 * kWarp) {
    float c[kEach][2];
#pragma unroll
    for (int k = 0; k < kEach; ++k) tile::load(c[k], tile + (key + k) * p.padded + column);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float q[2];
      tile::load(q, queries + h * p.padded + column);
#pragma unroll
      for (int k = 0; k < kEach; ++k)
        sum[h * kEach + k] = fmaf(q[1], c[k][1], fmaf(q[0], c[k][0], sum[h * kEach + k]));
    }
  }
  halve<kWarp / 2>(sum, lane);
  static_assert(kHeads * kEach == 2 * kWarp);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int at = 2 * lane + j;
    scratch.weight[key + at % kEach][at / kEach] = sum[j] * p.scale;
  }
}

// Converts scores to weights. A warp handles two heads; a lane handles a key. NaN stays NaN.
__device__ __forceinline__ void weigh(Scratch& scratch, int* count) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const bool present = scratch.row[lane] >= 0;
  const uint32_t mask = __ballot_sync(kAllLanes, present);
  *count += __popc(mask);
#pragma unroll
  for (int i = 0; i < kHeads / kWarps; ++i) {
    const int head = warp * (kHeads / kWarps) + i;
    const float before = scratch.largest[head], score = scratch.weight[lane][head];
    const float largest = fmaxf(before, warp_max(present ? score : -INFINITY));
    const float weight = present ? expf(score - largest) : 0.f;
    const float factor = largest == before ? 1.f : expf(before - largest), sum = warp_sum(weight);
    scratch.weight[lane][head] = weight;
    __syncwarp();
    if (lane == 0) {
      scratch.factor[head] = factor, scratch.largest[head] = largest;
      scratch.sum[head] = scratch.sum[head] * factor + sum;
    }
  }
}

// Computes the partial results of one split of the keys of one row, for kHeads heads. kPairs: pairs of columns per thread.
template <int kPairs, class X>
__global__ void __launch_bounds__(kThreads, kPairs == 1 ? 2 : 1)
    attend(const __grid_constant__ Parameters p) {
  extern __shared__ uint4 shared[];
  Scratch& scratch = *reinterpret_cast<Scratch*>(shared);
  float* const queries = reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(shared) + kScratchBytes);
  X* const tile = reinterpret_cast<X*>(queries + kHeads * p.padded);
  const int own = static_cast<int>(threadIdx.x), split = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y) * kHeads, width = p.rank + p.rope;
  const int64_t row = blockIdx.z;
  tile::release_next();
  tile::wait_for_previous();
  const int64_t s = sequence_of(p, p.first + row, &scratch.sequence);
  if (s < 0) return;
  // Number of rows from this row to the end of the sequence.
  const int64_t behind = p.q_begin[s + 1] - (p.first + row);
  const int64_t keys = min(p.kv_len[s] - behind + 1, p.pages_per_seq * p.page_size);
  const int64_t begin = split * p.split_keys, end = min(begin + p.split_keys, keys);
  for (int i = own; i < kHeads * p.padded; i += kThreads) {
    const int h = head + i / p.padded, at = i % p.padded;
    queries[i] = h < p.heads && at < width ? p.queries[(row * p.heads + h) * width + at] : 0.f;
  }
  if (own < kHeads) scratch.largest[own] = -INFINITY, scratch.sum[own] = 0;
  float sum[kPairs][kHeads][2] = {};
  int count = 0;
  for (int64_t at = begin; at < end; at += kKeys) {
    __syncthreads();
    if (own < kKeys) {
      const int64_t position = at + own;
      const int64_t page = position < end ? p.page_table[s * p.pages_per_seq + position / p.page_size] : -1;
      scratch.row[own] = page >= 0 && page < p.pages ? page * p.page_size + position % p.page_size : -1;
    }
    __syncthreads();
    fetch(p, scratch, tile);
    __syncthreads();
    score(p, scratch, queries, tile);
    __syncthreads();
    weigh(scratch, &count);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int column = 2 * (own + i * kThreads);
      if (column >= p.rank) break;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) sum[i][h][0] *= scratch.factor[h], sum[i][h][1] *= scratch.factor[h];
#pragma unroll 2
      for (int key = 0; key < kKeys; ++key) {
        float c[2], weight[kHeads];
        tile::load(c, tile + key * p.padded + column);
        tile::load(weight, scratch.weight[key]);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          sum[i][h][0] = fmaf(weight[h], c[0], sum[i][h][0]);
          sum[i][h][1] = fmaf(weight[h], c[1], sum[i][h][1]);
        }
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (head + h >= p.heads) break;
    const int64_t part = (row * p.heads + head + h) * p.splits + split;
    float* const scalars = p.scalars + part * kScalars;
    if (own == 0)
      scalars[0] = scratch.largest[h], scalars[1] = scratch.sum[h], scalars[2] = static_cast<float>(count);
    if (count == 0) continue;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int column = 2 * (own + i * kThreads);
      if (column < p.rank) p.latents[part * p.rank + column] = sum[i][h][0];
      if (column + 1 < p.rank) p.latents[part * p.rank + column + 1] = sum[i][h][1];
    }
  }
}

}  // namespace sluice::cuda::latent
