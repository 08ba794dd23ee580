// A dense layer by tiles of 128 features x 64 to 256 rows, or 64 x 16 to 128; each CTA computes whole sums (linear_tile.cuh).
//
// Wins    from 384 rows on for 2880 x 4096, from 160 rows on for 5120 x 2880, from 16 rows on for the output layer 201088 x 2880
//         (linear_candidates.csv): 25.8 us against 31.2 us of split_sm90 at 384 rows of 2880 x 4096.
// Loses   few rows and few features, to split_sm90 and shares_sm90, because most SMs idle: 14.6 us against 9.3 us at 64 rows of
//         2880 x 4096. Up to 8 rows to stream_sm90, which starts faster.
// Limits  see supports(). A sum runs from the first k to the last, whatever the tile, so a row's bits do not depend on the batch.
// Bytes   w once for each tile of rows, x once for each tile of features, from L2 except the first time.
// Source  original; the contract is ops/linear.h.
#include "backends/cuda/linear/linear_tile.cuh"

namespace sluice::cuda {
namespace {

Refusal supports(const Linear::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_linear_operands(r, p, d);
  need_few_rows(r, p, int64_t{1} << 20, "tiles are counted in 32 bits");
  return r;
}

struct Launcher {
  static Status enqueue(const Linear::Problem&, std::span<const KernelLaunch>, const Linear::Args&, Workspace,
                        Stream);
};

}  // namespace

extern const Candidate<Linear> linear_tile_sm90 = {
    .name = "cuda.linear.tile_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = linear_tile_configs,
    .enqueue_config = enqueue_config_of<Linear, Launcher>(),
    .launch_text = linear_tile_text,
    .batch_invariant = true,
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
  return {linear_tile<LinearTiles<kLinearTiles[kIndex].groups, kLinearTiles[kIndex].n>>...};
}

Status Launcher::enqueue(const Linear::Problem& p, std::span<const KernelLaunch> launches,
                         const Linear::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  return launch_linear_any(linear_tile_sm90.name, p, LinearTileLaunch::of(launches[0]), a, stream);
}

}  // namespace

Status launch_linear_wide(std::string_view name, const Linear::Problem& p, const LinearTileLaunch& l,
                          const Linear::Args& a, Stream stream) {
  static constexpr auto kWide = kernels(std::make_index_sequence<kLinearWide>());
  return launch_linear_tile(name, kWide[static_cast<size_t>(l.kind)], p, l, a, stream);
}

}  // namespace sluice::cuda
#endif
