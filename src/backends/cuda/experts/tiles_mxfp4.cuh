// The tile kernels for mxfp4 weights, from their rows of config.h.
#pragma once
#include "backends/cuda/experts/tiles.cuh"

namespace sluice::cuda {

template <int kRow>
struct Mxfp4Tile {
  static constexpr TileKernel kOf = kMxfp4Tiles[kRow];
  static constexpr int kGroups = 3, kGatherBlocks = kOf.x == XSource::kGathered ? 5 : 0;
  using Type = ExpertTiles<Mxfp4Blocks, kOf.x, kGroups, kOf.tile_m / (64 * kGroups), kOf.n_most, kOf.n_step,
                           kOf.n_least, kOf.k_steps, 1, kOf.ctas() == 2, kGatherBlocks>;
};

#ifdef __CUDACC__
template <DType kWeights, int kRow>
Status launch_tile(const TileCall& call) {
  return launch_tiles<typename Mxfp4Tile<kRow>::Type>(call);
}
#endif

}  // namespace sluice::cuda
