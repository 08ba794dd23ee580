// Copies rows of tokens, one TMA box per row, multicast to both CTAs of a pair. They
// arrive in the layout of one box with all rows, because TMA swizzles by address bits.
#pragma once
#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"

namespace sluice::cuda {

constexpr int kXWarps =
    3;  // these warps copy rows one by one; a single warp would issue copies more slowly than the tensor cores multiply

#ifdef __CUDACC__

// The TMA map, through an address that is opaque to the compiler. Otherwise the compiler recomputes
// the address of the kernel parameter for each copy, which takes two of the copy's eight instructions.
__device__ __forceinline__ const CUtensorMap& map_at_hand(const CUtensorMap& map) {
  const auto at = reinterpret_cast<uint64_t>(&map);
  const auto low = static_cast<uint32_t>(uniform(static_cast<int>(at))),
             high = static_cast<uint32_t>(uniform(static_cast<int>(at >> 32)));
  return *reinterpret_cast<const CUtensorMap*>(static_cast<uint64_t>(high) << 32 | low);
}

// The boxes that one warp copies. Each CTA of the pair has half of a tile's rows, in units
// of 8 rows; unit i of the half belongs to warp i % kXWarps. kMax: maximum rows of a tile.
template <int kMax>
struct TokenBoxes {
  static constexpr int kUnit = 8, kUnitBytes = kUnit * tile::kSwizzledRowBytes;
  static constexpr int kOwn = (kMax / kUnit / 2 + kXWarps - 1) / kXWarps;  // units per warp
  static constexpr int kEach = (kOwn * kUnit + 31) / 32;                   // rows per lane
  static_assert(kMax % (2 * kUnit) == 0);

  int all, first, count;  // units in the tile; this CTA's first unit; its number of units
  // Indices of rows of x: in lane l, row l % 8 of this warp's units l / 8, l / 8 + 4 and so on.
  int rows[kEach];

  // Loads the indices of the rows, which the copies need.
  __device__ __forceinline__ void find(const ExpertParameters& p, const ExpertTile& t, uint32_t rank,
                                       int warp) {
    constexpr int kNone = -1;  // outside the tensor of the TMA map, so TMA writes zeros
    const int lane = static_cast<int>(threadIdx.x % 32);
    all = ceil_div(t.rows, kUnit);
    const int half = ceil_div(all, 2);
    first = rank == 0 ? 0 : half;
    count = rank == 0 ? half : all - half;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = (first + warp + kXWarps * (4 * i + lane / kUnit)) * kUnit + lane % kUnit;
      rows[i] = row < t.rows ? __ldg(p.order + t.row + row) / p.slots : kNone;
    }
  }

  // Bytes of a k block of the tile, from both CTAs' copies.
  __device__ __forceinline__ uint32_t bytes() const { return static_cast<uint32_t>(all * kUnitBytes); }

  // Copies this warp's rows in the k block that begins at `column`. to: address of the tile's first row.
  __device__ __forceinline__ void copy(const CUtensorMap& x, uint32_t to, int column, uint32_t full,
                                       int warp) const {
    const uint32_t own = to + static_cast<uint32_t>((first + warp) * kUnitBytes);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (warp + kXWarps * i >= count) break;
#pragma unroll
      for (int r = 0; r < kUnit; ++r)
        tile::copy_box_to(3, own + i * kXWarps * kUnitBytes + r * tile::kSwizzledRowBytes, x, column,
                          __shfl_sync(0xffffffffu, rows[i / 4], i % 4 * kUnit + r), full);
    }
  }
};

#endif

}  // namespace sluice::cuda
