// CTA pairs that share weights.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile/tiles.cuh"

namespace sluice::cuda {

template Status launch_tile<DType::kBF16, 7>(const TileCall&);
template Status launch_tile<DType::kBF16, 8>(const TileCall&);
template Status launch_tile<DType::kBF16, 9>(const TileCall&);
template Status launch_tile<DType::kBF16, 10>(const TileCall&);

}  // namespace sluice::cuda

#endif
