// The scales of a tile's rows of x in FP8, by which an epilogue multiplies the sums of its columns.
#pragma once
#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/shared.cuh"

namespace sluice::cuda {

#ifdef __CUDACC__

// Copied to shared memory during the mainloop, for the reason that EpilogueRowsAhead gives. If x has one row per token, the rows' tokens
// are copied first, and their scales are read after the mainloop. Called by all threads of a warpgroup.
template <class C>
struct EpilogueColumns {
  static constexpr bool kInOrder = C::kRows == XSource::kInOrder;
  uint32_t to;  // address of this warpgroup's C::kTileN words
  int barrier;  // named barrier of the warpgroup

  // epilogue: address of the epilogues' shared memory. group: index of the warpgroup.
  __device__ __forceinline__ EpilogueColumns(uint32_t epilogue, int group)
      : to(epilogue + C::kColumnScales + static_cast<uint32_t>(group * C::kTileN * 4)), barrier(1 + group) {}

  // Issues the copies, which the caller commits, once all threads have read the previous tile's scales.
  __device__ __forceinline__ void ask(const ExpertParameters& p, const ExpertTile& t) const {
    tile::sync_threads<128>(barrier);
    const void* from = by_order(p) ? static_cast<const void*>(p.x_scale) : p.order;
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x % 128); i < C::kTileN; i += 128)
      tile::copy_4(to + i * 4, static_cast<const uint32_t*>(from) + t.row + min(i, t.rows - 1), 4);
  }
  // Multiplies the sums by the scales. The caller has waited for this thread's copies.
  template <int N>
  __device__ __forceinline__ void apply(float (&d)[C::kBlocks][N / 2], const ExpertParameters& p,
                                        const ExpertTile& t) const {
    if (!by_order(p)) {
#pragma unroll
      for (int i = static_cast<int>(threadIdx.x % 128); i < N; i += 128) {
        const uint32_t at = to + i * 4;
        const float scale = __ldg(p.x_scale + static_cast<int>(tile::load_shared_word(at)) / p.slots);
        tile::store_shared_word(at, __float_as_uint(scale));
      }
    }
    tile::sync_threads<128>(barrier);
    const uint32_t mine = to + threadIdx.x % 4 * 8;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      const uint2 two = tile::load_shared_pair(mine + j * 32);
      const float scale[2] = {__uint_as_float(two.x) * C::Weights::Codes::kUnit,
                              __uint_as_float(two.y) * C::Weights::Codes::kUnit};
#pragma unroll
      for (int b = 0; b < C::kBlocks; ++b)
#pragma unroll
        for (int i = 0; i < 4; ++i) d[b][4 * j + i] *= scale[i % 2];
    }
  }

 private:
  // Whether row r of y has the scale r.
  static __device__ __forceinline__ bool by_order(const ExpertParameters& p) {
    return kInOrder || p.slots == 0;
  }
};

#endif

}  // namespace sluice::cuda
