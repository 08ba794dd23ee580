// Shared by the kernel descriptors of router_gemm_tile_sm90 and router_gemm_terms_sm90.
// Their .cu files have the mainloops and say when each kernel wins and loses.
#pragma once
#include <array>
#include <iterator>
#include <utility>

#include "backends/cuda/card.h"
#include "backends/cuda/router/router_gemm_tile.h"
#include "ops/router_gemm.h"
#if defined(__CUDACC__)
#include "backends/cuda/router/router_gemm_tile_frame.cuh"
#endif

namespace sluice::cuda {

struct RouterTileData {
  std::string_view name;
  DType weights;
  std::string_view why;  // why other types of weights are refused; the refusal's text ends with it
  int64_t hidden_min;    // minimum; shorter sums may miss their error bound on tensor cores
  std::vector<Config> (*configs)(const RouterGemm::Problem&, const DeviceInfo&);
};

template <const RouterTileData& kData, class Launcher>
struct RouterTileCandidate {
  static Refusal supports(const RouterGemm::Problem& p, const DeviceInfo& d) {
    Refusal r;
    need_sm90(r, d);
    need_type(r, "x", p.x, DType::kBF16, "wgmma operand");
    need_type(r, "w", p.w, kData.weights, kData.why);
    need_multiple(r, "hidden", p.hidden, 8, "16-byte rows for TMA");
    if (p.hidden < kData.hidden_min)
      r.need(false,
             "hidden >= " + std::to_string(kData.hidden_min) +
                 " (shorter sums may miss their bound on tensor cores)",
             "hidden", p.hidden);
    return r;
  }
  static constexpr Candidate<RouterGemm> make() {
    return {.name = kData.name,
            .backend = Backend::kCuda,
            .supports = supports,
            .configs = kData.configs,
            .enqueue_config = enqueue_config_of<RouterGemm, Launcher>(),
            .launch_text = router_tile_text,
            .alignment_bytes = 16,
            .planned = !kHasKernels};
  }
};

#if defined(__CUDACC__)
// The compiled kernels for a list of tiles. Of::instance<kGroups, kTokens, kSource>() returns the kernel for one tile.
template <const auto& kTiles, class Of>
constexpr auto router_tile_instances() {
  return []<size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::array<RouterTileInstance, sizeof...(kIndex)>{
        Of::template instance<kTiles[kIndex].groups, kTiles[kIndex].tokens, RouterSource::kCopies>()...};
  }
  (std::make_index_sequence<std::size(kTiles)>());
}
#endif

}  // namespace sluice::cuda
