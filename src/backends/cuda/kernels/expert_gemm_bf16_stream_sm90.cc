// Expert GEMM for few rows an expert, bf16 weights: a persistent grid walks one flat list of (expert, weight
// block) steps, so that every SM streams weights all the time; tokens are the narrow side of the instruction.
// A card: planned, not built.
//
// Wins    up to about 64 rows an expert: memory stays saturated, and no SM waits for a long expert.
// Loses   more rows: weights pass the tensor cores again for each 64 rows. See bf16_tile_sm90.
// Limits  see supports(). Where a sum is split depends on the whole list, so it is not batch-invariant.
// Source  original; the contract is ops/expert_gemm.h. Cost: what the design may reach, bytes at the
//         rate of a plain stream and products at a share of the dense rate.
#include "backends/cuda/card.h"
#include "backends/cuda/expert_cost.h"

namespace sluice::cuda {
namespace {

constexpr double kColumnsLeast = 8, kColumnsMost = 64;
constexpr double kTails = 1.0;        // SMs that idle while the last tiles run
constexpr double kTensorShare = 0.6;  // of the dense rate

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_type(r, "w", p.w, DType::kBF16, "wgmma operand");
  return r;
}

double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kOverlapLost = 0.45;  // at the power limit, bytes and arithmetic do not hide each other
  const ExpertLoad load = expert_load(p);
  const ColumnTiles tiles = column_tiles(load.rows_each, kColumnsLeast, kColumnsMost);
  const double flops = 2 * load.active * tiles.tiles * tiles.columns *
                       static_cast<double>(ExpertGemm::weight_rows(p)) * static_cast<double>(p.width);
  const double tensor = flops / (kTensorShare * d.bf16_flops_per_us);
  const double memory = ExpertGemm::bytes(p) / d.mem_bytes_per_us;
  return kRampUs + kTails * (std::max(memory, tensor) + kOverlapLost * std::min(memory, tensor));
}

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_bf16_stream_sm90 = {
    .name = "cuda.expert_gemm.bf16_stream_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<ExpertGemm>,
    .enqueue = no_kernel<ExpertGemm>,
    .alignment_bytes = 16,
    .planned = true,
};

}  // namespace sluice::cuda
