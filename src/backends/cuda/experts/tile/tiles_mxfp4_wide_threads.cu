// mxfp4: the kernels of tile_n 48 to 160 for rows of x at any address.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile/launch_tiles.cuh"

namespace sluice::cuda {

template Status launch_tile<WeightFormat{DType::kE2M1}, 15>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 16>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 17>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 18>(const TileCall&);

}  // namespace sluice::cuda

#endif
