// Enqueues the launches of a configuration from a table of
// all compiled kernels. It makes no decisions of its own.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile/tile_call.h"

namespace sluice::cuda {
namespace {

using Launcher = Status (*)(const TileCall&);
template <WeightFormat kFormat, int... kRow>
constexpr auto launchers(std::integer_sequence<int, kRow...>) {
  return std::array<Launcher, sizeof...(kRow)>{launch_tile<kFormat, kRow>...};
}
template <WeightFormat kFormat>
constexpr auto kLaunchers =
    launchers<kFormat>(std::make_integer_sequence<int, static_cast<int>(tile_kernels(kFormat).size())>());

Launcher launcher_of(WeightFormat f, size_t row) {
  using S = WeightScales;
  if (!f.scaled()) return kLaunchers<WeightFormat{}>[row];
  if (f.w == DType::kE2M1)
    return f.scales == S::kMx ? kLaunchers<WeightFormat{DType::kE2M1}>[row]
                              : kLaunchers<WeightFormat{DType::kE2M1, S::kNv}>[row];
  return f.scales == S::kMx       ? kLaunchers<WeightFormat{DType::kE4M3}>[row]
         : f.scales == S::kBlocks ? kLaunchers<WeightFormat{DType::kE4M3, S::kBlocks}>[row]
                                  : kLaunchers<WeightFormat{DType::kE4M3, S::kRows}>[row];
}

}  // namespace

Status enqueue_tiles(std::string_view name, const ExpertGemm::Problem& p,
                     std::span<const KernelLaunch> launches, const ExpertGemm::Args& a, Workspace w,
                     Stream stream) {
  // With no tokens, no row has a token, and x has no memory to map.
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
    SLUICE_TRY(launcher_of(ExpertGemm::format(p), row)({name, p, args, stream, launch, w.data}));
  }
  return {};
}

}  // namespace sluice::cuda

#endif
