// mxfp4: the kernels of CTA pairs that share rows of x.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile/launch_tiles.cuh"

namespace sluice::cuda {

template Status launch_tile<WeightFormat{DType::kE2M1}, 9>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 10>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 19>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 20>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 21>(const TileCall&);
template Status launch_tile<WeightFormat{DType::kE2M1}, 22>(const TileCall&);

}  // namespace sluice::cuda

#endif
