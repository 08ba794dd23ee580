// bf16: the kernels of single CTAs, and the kernels of CTA pairs that share rows of x at small tile_n.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile/launch_tiles.cuh"

namespace sluice::cuda {

template Status launch_tile<WeightFormat{}, 0>(const TileCall&);
template Status launch_tile<WeightFormat{}, 1>(const TileCall&);
template Status launch_tile<WeightFormat{}, 2>(const TileCall&);
template Status launch_tile<WeightFormat{}, 3>(const TileCall&);

}  // namespace sluice::cuda

#endif
