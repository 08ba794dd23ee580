// A dense layer through cuBLASLt. Planned: a card without a kernel.
//
// Wins    always, as the only one: dense layers are not Sluice's purpose.
// Loses   few tokens: the library takes at least 5.6 us and a launch.
// Limits  see supports(). The residual is the library's C, so it costs a read.
// Source  the library's data types for 32-bit accumulation; the contract is ops/linear.h.
#include "backends/cuda/card.h"
#include "backends/cuda/lt.h"
#include "ops/linear.h"

namespace sluice::cuda {
namespace {

Refusal supports(const Linear::Problem& p, const DeviceInfo& d) {
  Refusal r = lt_supports({.x = p.x, .w = p.w, .y = p.y, .bias = p.bias}, d);
  r.need(p.layout == WeightLayout::kRowMajor, "layout row_major (the library's own)",
         "layout=" + std::string(word(p.layout)));
  return r;
}

double cost_us(const Linear::Problem& p, const DeviceInfo& d) {
  const double tensor = Linear::flops(p) / lt_flops_per_us(p.x, d);
  return lt_floor_us(d) + std::max(tensor, Linear::bytes(p) / d.mem_bytes_per_us);
}

}  // namespace

extern const Candidate<Linear> linear_cublaslt = {
    .name = "cuda.linear.cublaslt",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = lt_workspace_bytes<Linear>,
    .enqueue = no_kernel<Linear>,
    .alignment_bytes = 16,
    .planned = true,
};

}  // namespace sluice::cuda
