// Attention of few queries: how the sums of warps and of the CTAs of a cluster become one (decode.cuh).
#pragma once
#include "backends/cuda/attention/rows.cuh"
#include "backends/cuda/tile/cluster.cuh"

namespace sluice::cuda::attention {

// Where the warps and CTAs of a cluster leave what they are joined from.
template <class Shape>
struct Partials {
  float largest[Shape::kWarps][Shape::kQueries], sum[Shape::kWarps][Shape::kQueries];
  float cta_largest[Shape::kQueries], cta_sum[Shape::kQueries];
};

// A sum of weighted values that is not divided yet: four elements of one query.
struct FourSums {
  float largest = kNothing, sum = 0;
  float4 value = {0, 0, 0, 0};

  // Adds a partial sum. Of several the largest score is taken first, so that each is multiplied once.
  __device__ __forceinline__ void add(float4 v, float of_largest, float of_sum) {
    const float factor = rescale(of_largest, base_of(largest));
    sum += of_sum * factor;
    value.x += v.x * factor, value.y += v.y * factor, value.z += v.z * factor, value.w += v.w * factor;
  }
};

// Joins `count` warps of a CTA from `first` on, in order: values `four` and the next three of `query`.
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

// The same over the CTAs of a cluster.
template <class Shape>
__device__ __forceinline__ FourSums join_ctas(const Partials<Shape>& of, const float* ring, int query,
                                              int four, int ctas) {
  const uint32_t largest = tile::shared_address(&of.cta_largest[query]),
                 sum = tile::shared_address(&of.cta_sum[query]),
                 values = tile::shared_address(ring + query * Shape::kPartialRow + four);
  FourSums all;
  for (int r = 0; r < ctas; ++r)
    all.largest = fmaxf(all.largest, tile::load_remote(tile::remote_address(largest, r)));
#pragma unroll 4
  for (int r = 0; r < ctas; ++r)
    all.add(tile::load_remote_four(tile::remote_address(values, r)),
            tile::load_remote(tile::remote_address(largest, r)),
            tile::load_remote(tile::remote_address(sum, r)));
  return all;
}

template <class Shape, int kDim>
__device__ __forceinline__ void write_four(const Step& p, const Queries& of, int kv_head, int query, int four,
                                           const FourSums& all) {
  const float share = share_of(p, kv_head * p.group + query % p.group, all.largest, all.sum);
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
