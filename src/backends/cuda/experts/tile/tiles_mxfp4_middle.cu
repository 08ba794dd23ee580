// mxfp4: the kernels of tile_n 48 to 160 for rows of x in y's order.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile/launch_tiles.cuh"

namespace sluice::cuda {

template Status launch_tile<WeightFormat{DType::kE2M1}, 4>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 5>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 6>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 7>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 8>(const TileCall&);

}  // namespace sluice::cuda

#endif
