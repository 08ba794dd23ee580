// Attention of few queries: joins the sums of the warps of a CTA, and of the CTAs of a cluster (decode.cuh).
#pragma once
#include <bit>

#include "backends/cuda/attention/rows.cuh"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/split_sum.cuh"

namespace sluice::cuda::attention {

// Per warp and query: the largest score, and the sum of the weights relative to it.
template <class Shape>
struct Partials {
  float largest[Shape::kWarps][Shape::kQueries], sum[Shape::kWarps][Shape::kQueries];
};

// Four elements of one query's weighted sum of values, before the division by the sum of weights.
struct FourSums {
  float largest = kNothing, sum = 0;
  float4 value = {0, 0, 0, 0};

  // Adds a partial sum. Set `largest` to the largest score of all partial sums first, so that each is rescaled once.
  __device__ __forceinline__ void add(float4 v, float of_largest, float of_sum) {
    const float factor = rescale(of_largest, base_of(largest));
    sum += of_sum * factor;
    value.x += v.x * factor, value.y += v.y * factor, value.z += v.z * factor, value.w += v.w * factor;
  }
};

// Joins `count` warps of a CTA in order, beginning with warp `first`: elements `four` to four + 3 of `query`.
template <class Shape>
__device__ __forceinline__ FourSums join_warps(const Partials<Shape>& of, const float* ring, int first,
                                               int count, int query, int four) {
  FourSums all;
#pragma unroll
  for (int w = 0; w < Shape::kWarps; ++w)
    if (w < count) all.largest = fmaxf(all.largest, of.largest[first + w][query]);
#pragma unroll
  for (int w = 0; w < Shape::kWarps; ++w)
    if (w < count)
      all.add(*reinterpret_cast<const float4*>(ring + (first + w) * (Shape::kRingBytes / 4) +
                                               query * Shape::kPartialRow + four),
              of.largest[first + w][query], of.sum[first + w][query]);
  return all;
}

// Joins the CTAs of a cluster, whose sums are for the same tile. CTA r joins the r-th share of the tile's elements. The other CTAs
// send it their sums, 24 bytes per four elements, to shared memory that nothing else uses. The number of CTAs is a power of two.
template <class Shape>
struct ClusterJoin {
  static constexpr int kValueBytes = 16,
                       kFactorBytes = 8;  // four values; their largest score and sum of weights
  static constexpr int kBytes = Shape::kFours * (kValueBytes + kFactorBytes);

  static constexpr int kLog = std::bit_width(static_cast<unsigned>(Shape::kFours)) - 1;

  uint32_t values, barrier;  // shared memory addresses; the phase of a tile has one arrival and kBytes
  // Rank of this CTA; log2 of the number of CTAs; groups of four elements that this CTA joins.
  int rank, log, share;

  __device__ __forceinline__ ClusterJoin(uint32_t values, uint32_t barrier, int rank, int log)
      : values(values), barrier(barrier), rank(rank), log(log), share(Shape::kFours >> log) {
    // Recomputed for each tile: if these values were computed before the loop over keys, they would occupy registers during it.
    asm volatile("" : "+r"(this->values), "+r"(this->barrier), "+r"(this->rank), "+r"(this->log));
  }

  // Sends group `four` of the tile to the CTA that joins it, which must run and must have read what was sent for the previous tile.
  __device__ __forceinline__ void send(int four, const FourSums& sums) const {
    const auto owner = static_cast<uint32_t>(four >> (kLog - log));
    const int at = rank * share + (four & (share - 1));
    const tile::SplitInbox to = tile::SplitInbox{values, barrier}.of(owner);
    const float4& v = sums.value;
    to.store(value_at(at), make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z),
                                      __float_as_uint(v.w)));
    to.store(factor_at(at), make_float2(sums.largest, sums.sum));
  }
  // Group `mine` of this CTA's share, joined over all CTAs in order. Called after all bytes have arrived.
  __device__ __forceinline__ FourSums joined(int mine) const {
    const int ctas = 1 << log;
    FourSums all;
#pragma unroll 4
    for (int r = 0; r < ctas; ++r) all.largest = fmaxf(all.largest, factor(r * share + mine).x);
#pragma unroll 4
    for (int r = 0; r < ctas; ++r) {
      const float2 of = factor(r * share + mine);
      const uint4 v = tile::load_shared(values + value_at(r * share + mine));
      all.add(
          make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)),
          of.x, of.y);
    }
    return all;
  }

 private:
  // Offsets from `values`.
  static __device__ __forceinline__ uint32_t value_at(int i) { return i * kValueBytes; }
  static __device__ __forceinline__ uint32_t factor_at(int i) {
    return Shape::kFours * kValueBytes + i * kFactorBytes;
  }
  __device__ __forceinline__ float2 factor(int i) const {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(v.x), "=f"(v.y)
                 : "r"(values + factor_at(i))
                 : "memory");
    return v;
  }
};

// The sinks of a CTA's heads, copied to shared memory while the CTA waits for other data. If they were loaded at
// the end, the CTA would wait for memory once more. They are weights, so this may precede wait_for_previous().
struct Sinks {
  static constexpr int kMax = 64;  // heads; with more heads, a sink is loaded where it is used
  uint32_t word[kMax];

  __device__ __forceinline__ static bool copied(const Step& p, int heads) {
    const int each = p.sinks_bf16 ? 2 : 4;
    return p.sinks && heads <= kMax && reinterpret_cast<uintptr_t>(p.sinks) % 4 == 0 && heads * each % 4 == 0;
  }
  // Called by all threads. Before of(), they must call wait_copies() and pass a barrier.
  __device__ __forceinline__ void copy(const Step& p, int first, int heads) {
    const int words = heads * (p.sinks_bf16 ? 2 : 4) / 4, thread = static_cast<int>(threadIdx.x);
    const auto* from =
        static_cast<const uint8_t*>(p.sinks) + static_cast<int64_t>(first) * (p.sinks_bf16 ? 2 : 4);
    if (copied(p, heads) && thread < words)
      tile::copy_4(tile::shared_address(word + thread), from + 4 * thread, 4);
    tile::end_copies();
  }
  // The sink of head first + i, in the form that sink_of() returns.
  __device__ __forceinline__ float of(const Step& p, int first, int heads, int i) const {
    if (!copied(p, heads)) return sink_of(p, first + i);
    return kLog2E * (p.sinks_bf16 ? __uint_as_float(i % 2 ? word[i / 2] & 0xffff0000u : word[i / 2] << 16)
                                  : __uint_as_float(word[i]));
  }
};

template <class Shape, int kDim>
__device__ __forceinline__ void write_four(const Step& p, const Queries& of, int kv_head, int query, int four,
                                           const FourSums& all, float sink) {
  const float share = share_of(sink, all.largest, all.sum);
  const float out[4] = {scaled(all.value.x, share), scaled(all.value.y, share), scaled(all.value.z, share),
                        scaled(all.value.w, share)};
  auto* y = static_cast<__nv_bfloat16*>(p.y) + of.place(p, query, kv_head, kDim, p.y_stride) + four;
  if (p.y_wide) {
    tile::store(y, out);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = tile::from_f32<__nv_bfloat16>(out[i]);
  }
}

}  // namespace sluice::cuda::attention
