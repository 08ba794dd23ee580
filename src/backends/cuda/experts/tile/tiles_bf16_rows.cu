// CTA pairs that share rows of x.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile/tiles.cuh"

namespace sluice::cuda {

template Status launch_tile<DType::kBF16, 4>(const TileCall&);
template Status launch_tile<DType::kBF16, 5>(const TileCall&);
template Status launch_tile<DType::kBF16, 6>(const TileCall&);

}  // namespace sluice::cuda

#endif
