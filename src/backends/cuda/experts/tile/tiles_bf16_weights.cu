// bf16: the kernels of CTA pairs that share weights.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile/launch_tiles.cuh"

namespace sluice::cuda {

template Status launch_tile<WeightFormat{}, 7>(const TileCall&);
template Status launch_tile<WeightFormat{}, 8>(const TileCall&);
template Status launch_tile<WeightFormat{}, 9>(const TileCall&);
template Status launch_tile<WeightFormat{}, 10>(const TileCall&);

}  // namespace sluice::cuda

#endif
