// Rows by expert in one block: a bit for each (expert, flat slot) in shared memory, ranks by counting bits. A
// card: planned, not built.
//
// Wins    few slots: one launch, no sort, stable by construction.
// Loses   many slots: one SM does all the work.
// Limits  see supports(). The contract fixes every number, so batch-invariant as any kernel of it.
// Source  original; the contract is ops/group_rows.h.
#include "backends/cuda/card.h"
#include "ops/group_rows.h"

namespace sluice::cuda {
namespace {

constexpr int64_t kMaskBytes = 192 << 10;
constexpr double kLatencyUs = 2.4, kTokenUs = 1.5e-3;

Refusal supports(const GroupRows::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  const int64_t words = (p.tokens * p.slots + 31) / 32;
  r.need(p.experts * words * 4 <= kMaskBytes,
         "experts * tokens * slots / 8 <= 196608 (the mask lives in shared memory)",
         "experts * tokens * slots / 8", p.experts * words * 4);
  return r;
}

double cost_us(const GroupRows::Problem& p, const DeviceInfo&) {
  return kLatencyUs + kTokenUs * static_cast<double>(p.tokens);
}

}  // namespace

extern const Candidate<GroupRows> group_rows_bitmask_sm90 = {
    .name = "cuda.group_rows.bitmask_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<GroupRows>,
    .enqueue = no_kernel<GroupRows>,
    .batch_invariant = true,
    .planned = true,
};

}  // namespace sluice::cuda
