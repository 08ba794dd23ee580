// RMS norm, one block a row: the row stays in shared memory between the sum and the scaling. A card: planned,
// not built.
//
// Wins    always: it moves its bytes once.
// Loses   to a norm fused into the layer behind it, once there is one.
// Limits  see supports().
// Source  original; the contract is ops/rms_norm.h.
#include "backends/cuda/card.h"
#include "ops/rms_norm.h"

namespace sluice::cuda {
namespace {

Refusal supports(const RmsNorm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  need_multiple(r, "hidden", p.hidden, 8, "16-byte loads");
  r.need(p.hidden <= 49152, "hidden <= 49152 (a row of f32 in shared memory)", "hidden", p.hidden);
  return r;
}

}  // namespace

extern const Candidate<RmsNorm> rms_norm_rows_sm90 = {
    .name = "cuda.rms_norm.rows_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<RmsNorm>,
    .workspace_bytes = no_workspace<RmsNorm>,
    .enqueue = no_kernel<RmsNorm>,
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = true,
};

}  // namespace sluice::cuda
