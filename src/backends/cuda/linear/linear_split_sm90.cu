// A dense layer by tiles of 64 or 128 features x 16 to 128 rows; the CTAs of a cluster split the sums of a tile (linear_tile.cuh).
//
// Wins    12 to 256 rows of gpt-oss's 2880 x 4096 (linear_candidates.csv): 9.3 us against 14.6 us of tile_sm90 at 64 rows, because all SMs
//         stream weights.
// Loses   up to 8 rows to stream_sm90 (7.6 us against 7.0 us), from 384 rows on to tile_sm90, which exchanges no sums (31.2 us against
//         25.8 us), and 12 to 128 rows of 5120 x 2880 to shares_sm90.
// Limits  see supports(). A row's bits depend on the number of parts, which is in the configuration's name, but not on the batch.
// Source  original; the contract is ops/linear.h.
#include "backends/cuda/linear/linear_tile.cuh"

namespace sluice::cuda {
namespace {

Refusal supports(const Linear::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_linear_operands(r, p, d);
  need_few_rows(r, p, 1024, "every tile of rows reads the weights anew");
  return r;
}

struct Launcher {
  static Status enqueue(const Linear::Problem&, std::span<const KernelLaunch>, const Linear::Args&, Workspace,
                        Stream);
};

}  // namespace

extern const Candidate<Linear> linear_split_sm90 = {
    .name = "cuda.linear.split_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = linear_split_configs,
    .enqueue_config = enqueue_config_of<Linear, Launcher>(),
    .launch_text = linear_tile_text,
    .batch_invariant = true,
    .config_decides_bits = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include <utility>

namespace sluice::cuda {
namespace {

template <size_t... kIndex>
constexpr std::array<LinearTileKernel, sizeof...(kIndex)> kernels(std::index_sequence<kIndex...>) {
  return {linear_tile<LinearTiles<1, kLinearTiles[kLinearWide + kIndex].n>>...};
}

Status Launcher::enqueue(const Linear::Problem& p, std::span<const KernelLaunch> launches,
                         const Linear::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  return launch_linear_any(linear_split_sm90.name, p, LinearTileLaunch::of(launches[0]), a, stream);
}

}  // namespace

Status launch_linear_narrow(std::string_view name, const Linear::Problem& p, const LinearTileLaunch& l,
                            const Linear::Args& a, Stream stream) {
  static constexpr auto kNarrow = kernels(std::make_index_sequence<std::size(kLinearTiles) - kLinearWide>());
  return launch_linear_tile(name, kNarrow[static_cast<size_t>(l.kind - kLinearWide)], p, l, a, stream);
}

}  // namespace sluice::cuda
#endif
