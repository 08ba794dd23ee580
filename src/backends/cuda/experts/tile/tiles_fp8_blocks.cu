// Tiles of FP8 weights with block scales.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile/launch_tiles.cuh"

namespace sluice::cuda {

namespace {
constexpr WeightFormat kFormat{DType::kE4M3, WeightScales::kBlocks};
}  // namespace

template Status launch_tile<kFormat, 0>(const TileCall&);
template Status launch_tile<kFormat, 1>(const TileCall&);
template Status launch_tile<kFormat, 2>(const TileCall&);
template Status launch_tile<kFormat, 3>(const TileCall&);
template Status launch_tile<kFormat, 4>(const TileCall&);

}  // namespace sluice::cuda

#endif
