// Expert GEMM for many rows an expert, mxfp4 weights: tiles of 256 features x up to 192 rows. A card:
// planned, not built.
//
// Wins    more than about 64 rows an expert: each weight that is dequantised serves 192 rows.
// Loses   fewer rows: tiles run nearly empty. See mxfp4_stream_sm90.
// Limits  see supports(). Sums are never split, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/expert_gemm.h. Cost: what the design may reach, from loops without
//         an epilogue (expert_cost.h), not from this kernel.
#include "backends/cuda/card.h"
#include "backends/cuda/expert_cost.h"

namespace sluice::cuda {
namespace {

constexpr double kColumnsLeast = 40, kColumnsMost = 192;
constexpr double kTails = 1.07;  // SMs that idle while the last tiles run

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_type(r, "w", p.w, DType::kE2M1, "dequantised in registers");
  return r;
}

double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kFragmentBytes = 544, kL2Share = 1.1;
  const ExpertLoad load = expert_load(p);
  const ColumnTiles tiles = column_tiles(load.rows_each, kColumnsLeast, kColumnsMost);
  const FragmentTime time = fragment_time(tiles.columns);
  const double copy_ns = kFragmentBytes * d.cores / d.mem_bytes_per_us * 1e3;
  const double first_ns = std::max(time.compute_ns + time.copy_share * copy_ns, copy_ns);
  const double again_ns = kL2Share * time.compute_ns;  // the weights of further tiles come from L2
  const double fragments =
      load.active * static_cast<double>(ExpertGemm::weight_rows(p) / 64) * static_cast<double>(p.width / 16);
  return kRampUs + kTails * fragments * (first_ns + (tiles.tiles - 1) * again_ns) / d.cores / 1e3;
}

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_tile_sm90 = {
    .name = "cuda.expert_gemm.mxfp4_tile_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<ExpertGemm>,
    .enqueue = no_kernel<ExpertGemm>,
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = true,
};

}  // namespace sluice::cuda
