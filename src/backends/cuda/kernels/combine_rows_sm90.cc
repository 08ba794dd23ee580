// Combine, one block a token: 16-byte loads of the experts' rows, summed in the order of the slots. A card:
// planned, not built.
//
// Wins    always: it moves its bytes once.
// Loses   to a combine inside the expert GEMM, once there is one.
// Limits  see supports().
// Source  original; the contract is ops/combine.h.
#include "backends/cuda/card.h"
#include "ops/combine.h"

namespace sluice::cuda {
namespace {

Refusal supports(const Combine::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  need_multiple(r, "hidden", p.hidden, 8, "16-byte loads");
  return r;
}

}  // namespace

extern const Candidate<Combine> combine_rows_sm90 = {
    .name = "cuda.combine.rows_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<Combine>,
    .workspace_bytes = no_workspace<Combine>,
    .enqueue = no_kernel<Combine>,
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = true,
};

}  // namespace sluice::cuda
