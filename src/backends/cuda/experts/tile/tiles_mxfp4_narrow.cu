// mxfp4: the kernels of tile_n 16 to 40 for rows of x in y's order.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile/launch_tiles.cuh"

namespace sluice::cuda {

template Status launch_tile<WeightFormat{DType::kE2M1}, 0>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 1>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 2>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 3>(const TileCall&);

}  // namespace sluice::cuda

#endif
