// Enqueues the launches of a configuration, from a table of all compiled kernels. It decides nothing.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile/tile_call.h"

namespace sluice::cuda {
namespace {

using Launcher = Status (*)(const TileCall&);
template <DType kWeights, int... kRow>
constexpr auto launchers(std::integer_sequence<int, kRow...>) {
  return std::array<Launcher, sizeof...(kRow)>{launch_tile<kWeights, kRow>...};
}
template <DType kWeights>
constexpr auto kLaunchers =
    launchers<kWeights>(std::make_integer_sequence<int, static_cast<int>(tile_kernels(kWeights).size())>());

}  // namespace

Status enqueue_tiles(std::string_view name, const ExpertGemm::Problem& p,
                     std::span<const KernelLaunch> launches, const ExpertGemm::Args& a, Workspace w,
                     Stream stream) {
  // Without tokens no row has an owner, and there is no x to map.
  if (p.rows == 0 || ExpertGemm::tokens_of(p) == 0) return {};
  ExpertGemm::Args args = a;
  for (const KernelLaunch& one : launches) {
    const TileLaunch launch = TileLaunch::of(one);
    if (launch.kernel == TileLaunch::kOrderRows) {
      SLUICE_TRY(order_rows(name, p, a, w.data, stream));
      args.x = make_tensor(w.data, DType::kBF16, {p.rows, p.width}, Backend::kCuda);
      continue;
    }
    const auto row = static_cast<size_t>(launch.kernel);
    const Launcher run = p.w == DType::kE2M1 ? kLaunchers<DType::kE2M1>[row] : kLaunchers<DType::kBF16>[row];
    SLUICE_TRY(run({name, p, args, stream, launch, w.data}));
  }
  return {};
}

}  // namespace sluice::cuda

#endif
