// A dense layer in tiles of 128 features x 64 to 256 rows, or 64 x 16 to 128; every CTA computes whole sums (linear_tile.cuh).
//
// Wins    from 384 rows on for 2880 x 4096, from 160 rows on for 5120 x 2880, from 16 rows on for the output layer 201088 x 2880
//         (linear_candidates.csv): 25.8 us against 31.2 us of split_sm90 at 384 rows of 2880 x 4096.
// Loses   for few rows and features to split_sm90 and shares_sm90, because most SMs idle: 14.6 us against 9.3 us at 64 rows of
//         2880 x 4096. Up to 8 rows to stream_sm90, which starts faster.
// Limits  see supports() in linear_tile.h. A sum is added up from the first k to the last, whatever the tile, so the kernel is batch-invariant.
// Bytes   w once for each tile of rows, x once for each tile of features, from L2 except the first time.
// Source  original; the contract is ops/linear.h.
#include "backends/cuda/linear/linear_tile.cuh"

namespace sluice::cuda {
namespace {

constexpr LinearTileCard kCard{.name = "cuda.linear.tile_sm90",
                               .tokens_max = int64_t{1} << 20,
                               .cause = "tiles are counted in 32 bits",
                               .configs = linear_tile_configs};

}  // namespace

extern const Candidate<Linear> linear_tile_sm90 = LinearTileDescriptor<kCard>::candidate();

}  // namespace sluice::cuda

#if defined(__CUDACC__)
namespace sluice::cuda {

Status launch_linear_wide(std::string_view name, const Linear::Problem& p, const LinearTileLaunch& l,
                          const Linear::Args& a, Stream stream) {
  return launch_linear_tile<0, kLinearWide>(name, p, l, a, stream);
}

}  // namespace sluice::cuda
#endif
