// Router GEMM through cuBLASLt. A card: planned, not built.
//
// Wins    more tokens than the own kernels take, and types that they do not.
// Loses   few tokens: about 6 us whatever the size, because a split sum takes a second kernel.
// Limits  see supports().
// Source  the library's data types for 32-bit accumulation; the contract is ops/router_gemm.h.
#include "backends/cuda/card.h"
#include "backends/cuda/lt.h"
#include "ops/router_gemm.h"

namespace sluice::cuda {
namespace {

Refusal supports(const RouterGemm::Problem& p, const DeviceInfo& d) {
  return lt_supports({.x = p.x, .w = p.w, .y = p.y, .bias = p.bias}, d);
}

// H200, CUDA 13.0, weights not in L2: 6.3 us for 1 x 128 x 2880, 7.0 for 512, 27.5 for 4096 x 256 x 7168. The
// model is within 20% of 21 such numbers, save 4096 x 128 x 2880, where it says 10.4 and the card took 7.5.
double cost_us(const RouterGemm::Problem& p, const DeviceInfo& d) {
  return lt_floor_us(d) + RouterGemm::flops(p) / lt_flops_per_us(p.x, d);
}

}  // namespace

extern const Candidate<RouterGemm> router_gemm_cublaslt = {
    .name = "cuda.router_gemm.cublaslt",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = lt_workspace_bytes<RouterGemm>,
    .enqueue = no_kernel<RouterGemm>,
    .alignment_bytes = 16,
    .planned = true,
};

}  // namespace sluice::cuda
