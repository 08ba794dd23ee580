// Rows of tokens that the copy engine fetches into both blocks of a pair, a box for each row: to rows that lie as a whole box
// would put them, since the engine swizzles by bits of the address.
#pragma once
#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"

namespace sluice::cuda {

constexpr int kXWarps =
    3;  // that fetch rows one by one: one would ask for them more slowly than the tensor cores multiply

#ifdef __CUDACC__

// The map by an address that the compiler knows nothing about: it would work out that of a parameter anew for each copy, two
// instructions of eight.
__device__ __forceinline__ const CUtensorMap& map_at_hand(const CUtensorMap& map) {
  const auto at = reinterpret_cast<uint64_t>(&map);
  const auto low = static_cast<uint32_t>(uniform(static_cast<int>(at))),
             high = static_cast<uint32_t>(uniform(static_cast<int>(at >> 32)));
  return *reinterpret_cast<const CUtensorMap*>(static_cast<uint64_t>(high) << 32 | low);
}

// Those of one warp. Each block of the pair has half of a tile's rows, in eights; its warps take turns. kMost: rows of a tile.
template <int kMost>
struct TokenBoxes {
  static constexpr int kUnit = 8, kUnitBytes = kUnit * tile::kSwizzledRowBytes;
  static constexpr int kOwn = (kMost / kUnit / 2 + kXWarps - 1) / kXWarps;  // eights of a warp
  static constexpr int kEach = (kOwn * kUnit + 31) / 32;                    // rows of a lane
  static_assert(kMost % (2 * kUnit) == 0);

  int all, first, asked;  // eights of the tile; the block's own: from `first`, how many
  // Of x: lane l of warp `part` has row l % 8 of the warp's eights l / 8, 4 + l / 8 and so on.
  int rows[kEach];

  // One read names what the next one reads.
  __device__ __forceinline__ void find(const ExpertParameters& p, const ExpertTile& t, uint32_t rank,
                                       int part) {
    constexpr int kNone = -1;  // no row of the map's tensor: zeros
    const int lane = static_cast<int>(threadIdx.x % 32);
    all = ceil_div(t.rows, kUnit);
    const int half = ceil_div(all, 2);
    first = rank == 0 ? 0 : half;
    asked = rank == 0 ? half : all - half;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = (first + part + kXWarps * (4 * i + lane / kUnit)) * kUnit + lane % kUnit;
      rows[i] = row < t.rows ? __ldg(p.order + t.row + row) / p.slots : kNone;
    }
  }

  // Of a k block, of both blocks.
  __device__ __forceinline__ uint32_t bytes() const { return static_cast<uint32_t>(all * kUnitBytes); }

  // Asks for the warp's rows of the k block from `column` on; `to`: of the tile's first row.
  __device__ __forceinline__ void ask(const CUtensorMap& x, uint32_t to, int column, uint32_t full,
                                      int part) const {
    const uint32_t own = to + static_cast<uint32_t>((first + part) * kUnitBytes);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (part + kXWarps * i >= asked) break;
#pragma unroll
      for (int r = 0; r < kUnit; ++r)
        tile::copy_box_to(3, own + i * kXWarps * kUnitBytes + r * tile::kSwizzledRowBytes, x, column,
                          __shfl_sync(0xffffffffu, rows[i / 4], i % 4 * kUnit + r), full);
    }
  }
};

#endif

}  // namespace sluice::cuda
