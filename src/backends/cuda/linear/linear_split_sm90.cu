// A dense layer in tiles of 64 or 128 features x 16 to 128 rows; the CTAs of a cluster split k and add up their sums (linear_tile.cuh).
//
// Wins    12 to 256 rows of gpt-oss's 2880 x 4096 (linear_candidates.csv): 9.3 us against 14.6 us of tile_sm90 at 64 rows, because all SMs
//         stream weights.
// Loses   at 8 rows to stream_sm90 (7.6 us against 7.0 us), from 384 rows on to tile_sm90, which exchanges no sums (31.2 us against
//         25.8 us), and at 12 to 128 rows of 5120 x 2880 to shares_sm90.
// Limits  see supports() in linear_tile.h. The result depends on the number of parts of k, which is in the configuration's name, but not
//         on the batch.
// Source  original; the contract is ops/linear.h.
#include "backends/cuda/linear/linear_tile.cuh"

namespace sluice::cuda {
namespace {

constexpr LinearTileCard kCard{.name = "cuda.linear.split_sm90",
                               .tokens_max = 1024,
                               .cause = "every tile of rows reads the weights again",
                               .configs = linear_split_configs,
                               .config_decides_bits = true};

}  // namespace

extern const Candidate<Linear> linear_split_sm90 = LinearTileDescriptor<kCard>::candidate();

}  // namespace sluice::cuda

#if defined(__CUDACC__)
namespace sluice::cuda {

Status launch_linear_narrow(std::string_view name, const Linear::Problem& p, const LinearTileLaunch& l,
                            const Linear::Args& a, Stream stream) {
  return launch_linear_tile<kLinearWide, std::size(kLinearTiles) - kLinearWide>(name, p, l, a, stream);
}

}  // namespace sluice::cuda
#endif
