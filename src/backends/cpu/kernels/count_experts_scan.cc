// Counts the tokens of each expert: a plain loop over the ids of a layer, with layers in parallel.
//
// Wins    always: it is the only kernel of CountExperts on a CPU. A step has at most a few thousand ids per layer.
// Limits  none beyond the contract.
// Source  original; the contract is ops/count_experts.h.
#include "backends/cpu/card.h"
#include "ops/count_experts.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kIdsAlone = 16384;  // counting this many takes less time than starting another thread

void count_layer(const CountExperts::Problem& p, const CountExperts::Args& a, int64_t layer) {
  const auto* const ids = a.ids.row<const int32_t>(layer);
  auto* const counts = a.counts.row<int64_t>(layer);
  for (int64_t i = 0; i < p.tokens * p.top_k; ++i)
    if (ids[i] >= 0 && ids[i] < p.experts) ++counts[ids[i]];
}

Refusal supports(const CountExperts::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const CountExperts::Problem& p, const DeviceInfo& d) {
  return roofline_us<CountExperts>(p, d, 0.6, d.f32_flops_per_us);
}

Status enqueue(const CountExperts::Problem& p, const CountExperts::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    if (p.tokens == 0) return;
    const bool alone = p.layers * p.tokens * p.top_k <= kIdsAlone;
    q.pool->run(p.layers, alone ? p.layers : even_grain(p.layers, *q.pool),
                [&](int64_t begin, int64_t end, int) {
                  for (int64_t layer = begin; layer < end; ++layer) count_layer(p, a, layer);
                });
  });
}

}  // namespace

extern const Candidate<CountExperts> count_experts_scan = {
    .name = "cpu.count_experts.scan",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<CountExperts>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
