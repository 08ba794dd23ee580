// Replaces references to tokens of the previous step by their ids, in a plain loop over the ids.
//
// Wins    always: it is the only kernel of TakeTokens on a CPU. A step has at most a few thousand ids.
// Limits  none beyond the contract.
// Source  original; the contract is ops/take_tokens.h.
#include "backends/cpu/card.h"
#include "ops/take_tokens.h"

namespace sluice::cpu {
namespace {

Refusal supports(const TakeTokens::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const TakeTokens::Problem& p, const DeviceInfo& d) {
  return roofline_us<TakeTokens>(p, d, 0.6, d.f32_flops_per_us);
}

Status enqueue(const TakeTokens::Problem& p, const TakeTokens::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue&) {
    const auto* const sampled = a.sampled.as<const int32_t>();
    const auto* const token_of = a.token_of.as<const int32_t>();
    for (int64_t t = 0; t < p.tokens; ++t) {
      int64_t id = a.ids.as<const int32_t>()[t];
      if (id < 0) {
        const int64_t row = -1 - id;
        id = row < p.rows ? sampled[row] : -1;
        if (p.map > 0) id = id >= 0 && id < p.map ? token_of[id] : -1;
      }
      a.y.as<int32_t>()[t] = static_cast<int32_t>(id);
    }
  });
}

}  // namespace

extern const Candidate<TakeTokens> take_tokens_copy = {
    .name = "cpu.take_tokens.copy",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<TakeTokens>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
