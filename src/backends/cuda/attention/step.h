// Converts a call to the parameters of an attention kernel. Include it only in files that nvcc compiles.
#pragma once
#include <cuda.h>

#include <algorithm>

#include "backends/cuda/attention/rows.cuh"
#include "backends/cuda/tile/tensor_map.h"
#include "ops/attention.h"

namespace sluice::cuda::attention {

// True if a tensor's address and the stride of its rows are multiples of `bytes`.
inline bool rows_aligned(const Tensor& t, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(bytes) == 0 &&
         bytes_of(t.dtype, t.stride[0]) % bytes == 0;
}

inline Step step_of(const Attention::Problem& p, const Attention::Args& a) {
  const auto positions = [](int64_t n) { return static_cast<int>(std::min<int64_t>(n, INT32_MAX)); };
  return {.q = a.q.data,
          .y = a.y.data,
          .page_table = a.page_table.as<const int32_t>(),
          .q_begin = a.q_begin.as<const int32_t>(),
          .kv_len = a.kv_len.as<const int32_t>(),
          .sinks = p.sinks ? a.sinks.data : nullptr,
          .q_stride = a.q.stride[0],
          .y_stride = a.y.stride[0],
          .tokens = p.tokens,
          .limit = positions(p.pages_per_seq * p.page_size),
          .window = positions(p.window),
          .sequences = static_cast<int>(p.sequences),
          .heads = static_cast<int>(p.heads),
          .pages = static_cast<int>(p.pages),
          .pages_per_seq = static_cast<int>(p.pages_per_seq),
          .kv_heads = tile::Divisor(static_cast<int>(p.kv_heads)),
          .group = tile::Divisor(static_cast<int>(p.heads / p.kv_heads)),
          .page_size = tile::Divisor(static_cast<int>(p.page_size)),
          .settled = p.settled,
          .sinks_bf16 = p.s == DType::kBF16,
          .q_pairs = rows_aligned(a.q, 4),
          .q_wide = rows_aligned(a.q, 16),
          .y_wide = rows_aligned(a.y, 8),
          .y_widest = rows_aligned(a.y, 16),
          .scale = static_cast<float>(p.scale * 1.4426950408889634)};
}

// Makes the tensor map of a cache. A box is 128 bytes of `box_positions` positions of a page. For bf16, a row of the map is a
// head of one position. For e4m3, a row is 128 bytes (a head of one or two positions), described to TMA as 64 elements of bf16.
inline Status map_cache(CUtensorMap& map, const Attention::Problem& p, const Tensor& cache,
                        int box_positions) {
  const int64_t rows = p.pages * p.kv_heads * p.page_size;
  if (p.cache == CacheType::kSame)
    return tile::map_rows(map, make_tensor(cache.data, p.q, {rows, p.head_dim}, cache.where), box_positions);
  const Tensor pairs = make_tensor(cache.data, DType::kBF16, {rows * p.head_dim / 128, 64}, cache.where);
  return tile::map_rows(map, pairs, box_positions * static_cast<int>(p.head_dim) / 128);
}

}  // namespace sluice::cuda::attention
