// The tile kernels for bf16 weights, from their rows of config.h.
#pragma once
#include <type_traits>

#include "backends/cuda/experts/pairs.cuh"

namespace sluice::cuda {

template <int kRow>
struct Bf16Tile {
  static constexpr TileKernel kOf = kBf16Tiles[kRow];
  static constexpr bool kGathers = kOf.x == XSource::kGathered;
  static constexpr int kGroups = 2, kBlocks = kOf.tile_m / (64 * kGroups);
  // Staging of a warpgroup's rows of y, and what a gather warp has in flight: as much as shared memory has
  // room for.
  static constexpr int kStagedBytes = kBlocks == 1 && !kGathers ? 8192 : 4096;
  static constexpr int kGatherBlocks = kOf.shares == PairShares::kWeights ? 8 : 12,
                       kGatherRows = kOf.shares == PairShares::kWeights ? 4 : 8;
  using Type = std::conditional_t<
      kOf.ctas() == 1,
      ExpertTiles<Bf16Blocks, kOf.x, kGroups, kBlocks, kOf.n_most, kOf.n_step, kOf.n_least, kOf.k_steps>,
      ExpertPairs<kOf.shares, kOf.x, kBlocks, kOf.n_most, kOf.n_step, kOf.n_least, kStagedBytes,
                  kGatherBlocks, kGatherRows>>;
};

#ifdef __CUDACC__
template <DType kWeights, int kRow>
Status launch_tile(const TileCall& call) {
  using Type = typename Bf16Tile<kRow>::Type;
  if constexpr (Bf16Tile<kRow>::kOf.ctas() == 1) {
    return launch_tiles<Type>(call);
  } else {
    return launch_pairs<Type>(call);
  }
}
#endif

}  // namespace sluice::cuda
