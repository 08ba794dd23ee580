// Router GEMM for many tokens: tiles of 64 experts x 64 tokens, the sum split over as many blocks of a
// cluster as leave no SM idle. A card: planned, not built.
//
// Wins    about 128 to 2048 tokens, where a library's heuristics take a second kernel for the reduction.
// Loses   fewer tokens, to splitk_sm90 (tiles of 64 tokens are mostly empty).
// Limits  see supports(). How far the sum is split depends on the tokens, so it is not batch-invariant.
// Source  original; the contract is ops/router_gemm.h.
#include "backends/cuda/card.h"
#include "ops/router_gemm.h"

namespace sluice::cuda {
namespace {

constexpr double kLatencyUs = 2.6;    // splitk_sm90's, and a pipeline to fill
constexpr double kTensorShare = 0.7;  // of the dense rate that short sums reach

Refusal supports(const RouterGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  need_type(r, "x", p.x, DType::kBF16, "wgmma operand");
  need_type(r, "w", p.w, DType::kBF16, "wgmma operand");
  need_multiple(r, "experts", p.experts, 8, "16-byte stores");
  need_multiple(r, "hidden", p.hidden, 8, "16-byte rows for tensor copies");
  r.need(p.tokens <= 2048, "tokens <= 2048 (beyond it there is nothing to split)", "tokens", p.tokens);
  return r;
}

double cost_us(const RouterGemm::Problem& p, const DeviceInfo& d) {
  const double tensor = RouterGemm::flops(p) / (kTensorShare * d.bf16_flops_per_us);
  return kLatencyUs + std::max(tensor, RouterGemm::bytes(p) / d.mem_bytes_per_us);
}

}  // namespace

extern const Candidate<RouterGemm> router_gemm_wide_sm90 = {
    .name = "cuda.router_gemm.wide_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RouterGemm>,
    .enqueue = no_kernel<RouterGemm>,
    .alignment_bytes = 16,
    .planned = true,
};

}  // namespace sluice::cuda
