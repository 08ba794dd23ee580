// mxfp4: the kernels of tile_n 16 to 40 for rows of x at any address.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile/launch_tiles.cuh"

namespace sluice::cuda {

template Status launch_tile<WeightFormat{DType::kE2M1}, 11>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 12>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 13>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 14>(const TileCall&);

}  // namespace sluice::cuda

#endif
