// FP8 weights with block scales, and x in FP8.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile/launch_tiles.cuh"

namespace sluice::cuda {

namespace {
constexpr auto kFormat = WeightFormat{DType::kE4M3, WeightScales::kBlocks};
}  // namespace

template Status launch_fp8_tile<kFormat, 0>(const TileCall&);
template Status launch_fp8_tile<kFormat, 1>(const TileCall&);
template Status launch_fp8_tile<kFormat, 2>(const TileCall&);

}  // namespace sluice::cuda

#endif
