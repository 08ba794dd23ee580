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

template <WeightFormat kFormat, int... kRow>
constexpr auto fp8_launchers(std::integer_sequence<int, kRow...>) {
  return std::array<Launcher, sizeof...(kRow)>{launch_fp8_tile<kFormat, kRow>...};
}
template <WeightFormat kFormat>
constexpr auto kFp8Launchers = fp8_launchers<kFormat>(
    std::make_integer_sequence<int, static_cast<int>(tile_kernels(kFormat, DType::kE4M3).size())>());

Launcher launcher_of(WeightFormat f, size_t row, bool fp8) {
  using S = WeightScales;
  if (fp8)
    return f.w == DType::kE2M1      ? kFp8Launchers<WeightFormat{DType::kE2M1}>[row]
           : f.scales == S::kBlocks ? kFp8Launchers<WeightFormat{DType::kE4M3, S::kBlocks}>[row]
                                    : kFp8Launchers<WeightFormat{DType::kE4M3, S::kRows}>[row];
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
  ExpertGemm::Problem rest = p;  // the problem of the launches that remain
  const float* x_scale = nullptr;
  for (const KernelLaunch& one : launches) {
    const TileLaunch launch = TileLaunch::of(one);
    if (launch.kernel == TileLaunch::kOrderRows) {
      SLUICE_TRY(order_rows(name, p, a, w.data, stream));
      args.x = make_tensor(w.data, DType::kBF16, {p.rows, p.width}, Backend::kCuda);
      continue;
    }
    if (launch.kernel < 0) {
      const bool orders = launch.kernel == TileLaunch::kQuantizeOrdered;
      SLUICE_TRY(quantize_rows(name, p, a, orders, w.data, stream, &args.x, &x_scale));
      rest.settled = true;  // that launch waited for the groups before it let the next one start
      continue;
    }
    const auto row = static_cast<size_t>(launch.kernel);
    SLUICE_TRY(launcher_of(ExpertGemm::format(p), row,
                           x_scale != nullptr)({name, rest, args, stream, launch, w.data, x_scale}));
  }
  return {};
}

}  // namespace sluice::cuda

#endif
