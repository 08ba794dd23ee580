// Expert GEMM for few rows an expert, mxfp4 weights: a persistent grid walks one flat list of (expert, weight
// block) steps, so that every SM streams weights all the time; tokens are the narrow side of the instruction.
// A card: planned, not built.
//
// Wins    up to about 64 rows an expert: memory stays saturated, and no SM waits for a long expert.
// Loses   more rows: weights pass the tensor cores again for each 64 rows. See mxfp4_tile_sm90.
// Limits  see supports(). Where a sum is split depends on the whole list, so it is not batch-invariant.
// Source  original; the contract is ops/expert_gemm.h. Cost: what the design may reach, from loops without
//         an epilogue (expert_cost.h), not from this kernel.
#include "backends/cuda/card.h"
#include "backends/cuda/expert_cost.h"

namespace sluice::cuda {
namespace {

constexpr double kColumnsLeast = 8, kColumnsMost = 64;
constexpr double kTails = 1.0;  // SMs that idle while the last tiles run

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

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_stream_sm90 = {
    .name = "cuda.expert_gemm.mxfp4_stream_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<ExpertGemm>,
    .enqueue = no_kernel<ExpertGemm>,
    .alignment_bytes = 16,
    .planned = true,
};

}  // namespace sluice::cuda
