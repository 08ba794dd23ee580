// bf16: the kernels of CTA pairs that share rows of x.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile/launch_tiles.cuh"

namespace sluice::cuda {

template Status launch_tile<WeightFormat{}, 4>(const TileCall&);
template Status launch_tile<WeightFormat{}, 5>(const TileCall&);
template Status launch_tile<WeightFormat{}, 6>(const TileCall&);

}  // namespace sluice::cuda

#endif
