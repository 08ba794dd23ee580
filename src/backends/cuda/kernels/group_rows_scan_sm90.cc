// Rows by expert in three phases of one launch: counts by block, a scan by the last block to arrive, scatter.
// A card: planned, not built.
//
// Wins    many tokens: all SMs take part.
// Loses   few tokens, to bitmask_sm90: the phases wait for each other.
// Limits  see supports(). The contract fixes every number, so batch-invariant as any kernel of it.
// Source  original; the contract is ops/group_rows.h.
#include "backends/cuda/card.h"
#include "ops/group_rows.h"

namespace sluice::cuda {
namespace {

constexpr double kLatencyUs = 4.0, kTokenUs = 0.45e-3;

Refusal supports(const GroupRows::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

double cost_us(const GroupRows::Problem& p, const DeviceInfo&) {
  return kLatencyUs + kTokenUs * static_cast<double>(p.tokens);
}

// Counts of each block and expert, and the counter that tells the last block.
size_t workspace_bytes(const GroupRows::Problem& p, const DeviceInfo& d) {
  return sizeof(int32_t) * (static_cast<size_t>(d.cores) * static_cast<size_t>(p.experts) + 1);
}

}  // namespace

extern const Candidate<GroupRows> group_rows_scan_sm90 = {
    .name = "cuda.group_rows.scan_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = no_kernel<GroupRows>,
    .batch_invariant = true,
    .planned = true,
};

}  // namespace sluice::cuda
