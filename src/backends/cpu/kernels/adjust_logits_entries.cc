// Penalties and biases: a plain loop over the entries.
//
// Wins    always: it is the only kernel of AdjustLogits on a CPU. Entries are scattered over their rows, so vectors would not help.
// Limits  none beyond the contract.
// Source  original; the contract is ops/adjust_logits.h.
#include <cmath>

#include "backends/cpu/card.h"
#include "ops/adjust_logits.h"

namespace sluice::cpu {
namespace {

float unless_nan(float value, float otherwise) { return std::isnan(value) ? otherwise : value; }

float adjusted(const AdjustLogits::Args& a, int64_t entry, int64_t row, float x) {
  const int32_t count = a.count.as<const int32_t>()[entry];
  x += unless_nan(a.logit_bias.as<const float>()[entry], 0);
  if (a.in_prompt.as<const uint8_t>()[entry] != 0 || count > 0) {
    const float repetition = unless_nan(a.repetition.as<const float>()[row], 1);
    x = x > 0 ? x / repetition : x * repetition;
  }
  if (count > 0) {
    x -= unless_nan(a.frequency.as<const float>()[row], 0) * static_cast<float>(count);
    x -= unless_nan(a.presence.as<const float>()[row], 0);
  }
  return x;
}

void run_entry(const AdjustLogits::Problem& p, const AdjustLogits::Args& a, int64_t entry) {
  const int64_t row = a.row.as<const int32_t>()[entry], id = a.id.as<const int32_t>()[entry];
  if (row < 0 || row >= p.rows || id < 0 || id >= p.vocab) return;
  float& logit = a.logits.row<float>(row)[id];
  float& raw = a.raw.as<float>()[entry];
  if (p.way == AdjustWay::kRestore) {
    logit = raw;
  } else {
    raw = logit;
    logit = adjusted(a, entry, row, raw);
  }
}

Refusal supports(const AdjustLogits::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const AdjustLogits::Problem& p, const DeviceInfo& d) {
  return roofline_us<AdjustLogits>(p, d, 0.1, d.f32_flops_per_us);
}

Status enqueue(const AdjustLogits::Problem& p, const AdjustLogits::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    q.pool->run(p.entries, even_grain(p.entries, *q.pool), [&](int64_t begin, int64_t end, int) {
      for (int64_t entry = begin; entry < end; ++entry) run_entry(p, a, entry);
    });
  });
}

}  // namespace

extern const Candidate<AdjustLogits> adjust_logits_entries = {
    .name = "cpu.adjust_logits.entries",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<AdjustLogits>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
