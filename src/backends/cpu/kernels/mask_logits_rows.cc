// Masks: a plain loop over the logits of a row.
//
// Wins    always: it is the only kernel of MaskLogits on a CPU. It is memory-bound.
// Limits  none beyond the contract.
// Source  original; the contract is ops/mask_logits.h.
#include <algorithm>
#include <limits>

#include "backends/cpu/card.h"
#include "ops/mask_logits.h"

namespace sluice::cpu {
namespace {

void run_mask(const MaskLogits::Problem& p, const MaskLogits::Args& a, int64_t mask) {
  const int64_t row = a.row.as<const int32_t>()[mask];
  if (row < 0 || row >= p.rows) return;
  float* const logits = a.logits.row<float>(row);
  float* const raw = a.raw.as<float>() + mask * p.vocab;
  if (p.way == MaskWay::kRestore) return void(std::copy_n(raw, p.vocab, logits));
  const auto* const allowed = a.allowed.as<const uint32_t>() + mask * p.words();
  std::copy_n(logits, p.vocab, raw);
  for (int64_t i = 0; i < p.vocab; ++i)
    if ((allowed[i / 32] >> (i % 32) & 1) == 0) logits[i] = -std::numeric_limits<float>::infinity();
}

Refusal supports(const MaskLogits::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const MaskLogits::Problem& p, const DeviceInfo& d) {
  return roofline_us<MaskLogits>(p, d, 0.1, d.f32_flops_per_us);
}

Status enqueue(const MaskLogits::Problem& p, const MaskLogits::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    q.pool->run(p.masks, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t mask = begin; mask < end; ++mask) run_mask(p, a, mask);
    });
  });
}

}  // namespace

extern const Candidate<MaskLogits> mask_logits_rows = {
    .name = "cpu.mask_logits.rows",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<MaskLogits>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
