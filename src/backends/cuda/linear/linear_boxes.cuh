// How tiles of 128 features x more than 64 rows store a bf16 y
// (linear_tile.cuh): by TMA, in boxes of 16 or 32 rows x 64 features.
//
// Each consumer warpgroup has a few boxes in shared memory. One warp of the producer's warpgroup (the box
// warp) moves them. It loads the residual into a box ahead of time, for the next tile already while this
// tile is multiplied. The consumers add their sums and biases in place. Then the box warp stores the box
// to y and refills it once the store has read it. So consumers never wait for memory between two tiles.
#pragma once
#include "backends/cuda/linear/linear_tile_shape.cuh"

#if defined(__CUDACC__)
#include "backends/cuda/tile/bulk_copy.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/mma.cuh"
#include "backends/cuda/tile/ring.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"

namespace sluice::cuda {

template <class C>
struct LinearBoxes {
  static constexpr int kRows = C::kKind.box_rows(), kBytes = kRows * 128, kAtOnce = C::kKind.boxes(),
                       kOfTile = C::kN / kRows,
                       // squares of 16 rows x 16 features per box; a consumer warp handles one at a time
      kSquares = kRows / 16;
  static_assert(C::kN % kRows == 0 && kRows % 16 == 0);

  // address of the warpgroup's boxes; addresses of the barriers of its first box
  uint32_t boxes, ready, staged;

  __device__ __forceinline__ LinearBoxes(const LinearTileShared& at, uint32_t base, int group)
      : boxes(base + at.staging + group * C::kStagingBytes),
        ready(base + at.ready + group * kAtOnce * 8),
        staged(base + at.staged + group * kAtOnce * 8) {}
  static __device__ __forceinline__ void init(uint8_t* shared, const LinearTileShared& at) {
    if (threadIdx.x >= C::kGroups * kAtOnce) return;
    tile::barrier_init(reinterpret_cast<uint64_t*>(shared + at.ready) + threadIdx.x, 1);
    tile::barrier_init(reinterpret_cast<uint64_t*>(shared + at.staged) + threadIdx.x, 4);
  }

  // The boxes of a tile whose y this CTA writes.
  struct Own {
    int first, end;
    __device__ __forceinline__ explicit Own(const LinearEights<C>& own)
        : first(own.low * 8 / kRows), end((own.high * 8 + kRows - 1) / kRows) {}
  };

  using Biases = RawBiases<2, 8>;
  // The first of the lane's two features, in a 64-feature tile that begins at `first`.
  static __device__ __forceinline__ int feature_of_lane(int first) {
    return first + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  }

  // Called by a consumer warp: adds the biases and the contents of the boxes (the residual) to the tile's sums,
  // and writes the results to the boxes. tile/wgmma.cuh has the order of the registers. place: the next box.
  __device__ __forceinline__ void add(const float (&d)[C::kN / 2], const LinearOutput& out,
                                      const Biases& biases, const LinearEights<C>& eights,
                                      tile::RingPlace& place) const {
    const Own own(eights);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const float bias[2] = {biases.value(0), biases.value(1)};
    // The lane's address for ldmatrix and stmatrix: a row of one of the four 8 x 8 matrices of a square.
    const uint32_t at = boxes + tile::swizzled(lane / 16 * 8 + lane % 8, (2 * warp + lane / 8 % 2) * 16);
#pragma unroll
    for (int box = 0; box < kOfTile; ++box) {
      if (box < own.first || box >= own.end) continue;
      tile::barrier_wait_by_warp(ready + 8 * place.stage, place.parity);
#pragma unroll
      for (int square = 0; square < kSquares; ++square) {
        const uint32_t squares = at + place.stage * kBytes + square * 16 * 128;
        uint32_t pairs[4] = {};
        if (out.residual) tile::load_matrices_transposed(pairs, squares);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const float* sums = d + 4 * (2 * (kSquares * box + square) + m / 2) + m % 2 * 2;
          const float first = sums[0] + bias[m % 2] + __uint_as_float(pairs[m] << 16),
                      second = sums[1] + bias[m % 2] + __uint_as_float(pairs[m] & 0xffff0000u);
          const __nv_bfloat162 both = __floats2bfloat162_rn(first, second);
          pairs[m] = *reinterpret_cast<const uint32_t*>(&both);
        }
        tile::store_squares_transposed(squares, pairs);
      }
      tile::fence_for_async();
      tile::arrive_by_warp(staged + 8 * place.stage);
      place.step(kAtOnce);
    }
  }

  // The next box of a box warp. Tiles past the last feature have no boxes.
  struct Next {
    int tile, box = 0, end = 0;
    LinearTilePlace to{};

    __device__ __forceinline__ Next(const LinearTileParameters& p, int group, const LinearTileShare& mine)
        : tile(mine.tile) {
      find(p, group, mine);
    }
    __device__ __forceinline__ void find(const LinearTileParameters& p, int group,
                                         const LinearTileShare& mine) {
#pragma unroll 1
      for (; tile < p.tiles; tile += mine.stride) {
        to = linear_tile_place<C>(p, tile);
        to.feature += group * 64;
        const Own own(LinearEights<C>(min(C::kN, p.out.tokens - to.token), mine.rank, p.splits));
        box = own.first, end = own.end;
        if (to.feature < p.out.features && box < end) return;
      }
    }
    __device__ __forceinline__ void step(const LinearTileParameters& p, int group,
                                         const LinearTileShare& mine) {
      if (++box < end) return;
      tile += mine.stride;
      find(p, group, mine);
    }
  };

  // The loop of the box warp of warpgroup `group`.
  __device__ __forceinline__ void serve(const CUtensorMap& y, const CUtensorMap& residual,
                                        const LinearTileParameters& p, int group,
                                        const LinearTileShare& mine) const {
    Next full(p, group, mine), fill = full;
    tile::RingPlace place, filled;
    const auto fill_one = [&] {
      if (fill.tile >= p.tiles) return;
      const uint32_t barrier = ready + 8 * filled.stage;
      if (p.out.residual) {
        tile::barrier_expect_by_warp(barrier, kBytes);
        tile::copy_box(boxes + filled.stage * kBytes, residual, fill.to.feature,
                       fill.to.token + fill.box * kRows, barrier);
      } else {
        tile::arrive_by_warp(barrier);
      }
      filled.step(kAtOnce);
      fill.step(p, group, mine);
    };
#pragma unroll 1
    for (int i = 0; i < kAtOnce; ++i) fill_one();
#pragma unroll 1
    while (full.tile < p.tiles) {
      tile::barrier_wait_by_warp(staged + 8 * place.stage, place.parity);
      tile::store_box(y, full.to.feature, full.to.token + full.box * kRows, boxes + place.stage * kBytes);
      tile::stores_have_read();
      place.step(kAtOnce);
      full.step(p, group, mine);
      fill_one();
    }
    tile::stores_are_done();
  }
};

}  // namespace sluice::cuda
#endif
