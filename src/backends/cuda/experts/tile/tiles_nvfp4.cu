// Tiles of NVFP4 weights.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile/launch_tiles.cuh"

namespace sluice::cuda {

namespace {
constexpr WeightFormat kFormat{DType::kE2M1, WeightScales::kNv};
}  // namespace

template Status launch_tile<kFormat, 0>(const TileCall&);
template Status launch_tile<kFormat, 1>(const TileCall&);
template Status launch_tile<kFormat, 2>(const TileCall&);
template Status launch_tile<kFormat, 3>(const TileCall&);
template Status launch_tile<kFormat, 4>(const TileCall&);

}  // namespace sluice::cuda

#endif
