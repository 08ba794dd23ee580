// Expert GEMM for many rows an expert, bf16 weights: tiles of 256 features x up to 192 rows. A card: planned,
// not built.
//
// Wins    more than about 64 rows an expert: each weight that is read serves 192 rows.
// Loses   fewer rows: tiles run nearly empty. See bf16_stream_sm90.
// Limits  see supports(). Sums are never split, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/expert_gemm.h. Cost: what the design may reach, bytes at the
//         rate of a plain stream and products at a share of the dense rate.
#include "backends/cuda/card.h"
#include "backends/cuda/expert_cost.h"

namespace sluice::cuda {
namespace {

constexpr double kColumnsLeast = 40, kColumnsMost = 192;
constexpr double kTails = 1.07;        // SMs that idle while the last tiles run
constexpr double kTensorShare = 0.92;  // of the dense rate

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

extern const Candidate<ExpertGemm> expert_gemm_bf16_tile_sm90 = {
    .name = "cuda.expert_gemm.bf16_tile_sm90",
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
