// Parameters of the tile kernels of dense layers, and the order of their tiles (linear_tile.cuh).
#pragma once
#include "backends/cuda/linear/linear.h"
#include "backends/cuda/linear/linear_tile.h"

#if defined(__CUDACC__)
#include <cuda.h>

#include "backends/cuda/tile/ring.cuh"

namespace sluice::cuda {

struct LinearTileParameters {
  int steps, splits;  // k blocks; number of parts of k
  int tiles, token_tiles, feature_tiles;
  int boxed;  // TMA stores y, in boxes (linear_boxes.cuh)
  LinearTileShared at;
  LinearOutput out;
};
// base: address of the first stage.
__device__ __forceinline__ tile::Ring linear_ring(const LinearTileParameters& p, uint32_t base) {
  return {base + p.at.full, base + p.at.empty};
}
// Arguments: the tensor maps of w, x, y and the residual; the parameters.
using LinearTileKernel = void (*)(CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, LinearTileParameters);

// The constants of a compiled kernel.
template <int kGroups_, int kN_>
struct LinearTiles {
  static constexpr LinearTileKind kKind{kGroups_, kN_};
  static constexpr int kGroups = kGroups_, kN = kN_;
  static constexpr int kConsumers = 128 * kGroups;
  static constexpr uint32_t kWeightBytes = kKind.weight_bytes(), kStageBytes = kKind.stage_bytes(),
                            kGroupBytes = kWeightBytes / kGroups;
  static constexpr int kEights = kN / 8;  // groups of eight rows of x
  static constexpr bool kNarrow = kKind.narrow(), kSplits = kKind.splits(), kBoxed = kKind.boxed();
  static constexpr int kThreads = kKind.threads(), kFeatures = kKind.features(),
                       kStagedEights = kKind.staged_rows() / 8, kStagingBytes = kKind.staging_bytes();
  // For setmaxnreg: at launch, a thread has 168 registers.
  static constexpr bool kMovesRegisters = kGroups > 1 && kN > 128;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
};

struct LinearTilePlace {
  int token, feature;  // of the tile's first row and column
};

// The first token and feature of tile i. In order that tiles which run at the same time share
// features and rows, features form bands of kBand tiles, and within a band tiles are ordered by rows.
template <class C>
__device__ __forceinline__ LinearTilePlace linear_tile_place(const LinearTileParameters& p, int i) {
  constexpr int kBand = 16;
  const int band = i / (kBand * p.token_tiles), rest = i - band * kBand * p.token_tiles;
  const int width = min(kBand, p.feature_tiles - band * kBand), row = rest / width;
  return {row * C::kN, (band * kBand + rest - row * width) * C::kFeatures};
}

// What this CTA computes: its part of k, its first tile, and the distance to its next tile.
struct LinearTileShare {
  int rank, first_step, steps, tile, stride;

  __device__ __forceinline__ explicit LinearTileShare(const LinearTileParameters& p) {
    const int cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
    tile = cta / p.splits, stride = ctas / p.splits;
    rank = cta - tile * p.splits;
    const int each = p.steps / p.splits, more = p.steps - each * p.splits;
    first_step = rank * each + min(rank, more);
    steps = each + (rank < more);
  }
};

// The groups of eight rows of a tile that CTA `rank` of the cluster adds up and writes.
// They are whole multiples of kStagedEights groups, which a warpgroup writes at once.
template <class C>
struct LinearEights {
  static constexpr int kTake = C::kStagedEights;
  int low, high;
  __device__ __forceinline__ LinearEights(int rows, int rank, int splits) {
    low = rank * rounds(rows) / splits * kTake, high = (rank + 1) * rounds(rows) / splits * kTake;
  }
  static __device__ __forceinline__ int rounds(int rows) { return (rows + 8 * kTake - 1) / (8 * kTake); }
  // The maximum number of groups per CTA of a tile with this many rows.
  static __device__ __forceinline__ uint32_t most(int rows, int splits) {
    return static_cast<uint32_t>((rounds(rows) + splits - 1) / splits * kTake);
  }
};

}  // namespace sluice::cuda
#endif
