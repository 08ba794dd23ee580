// Rotary embedding in place, one head at a time: the table's row stays in the L1 cache for all heads of a token.
//
// Wins    always: it is the only kernel of Rope on a CPU. It reads and writes x once.
// Limits  none beyond the contract.
// Source  original; the contract is ops/rope.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/rope_heads.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include "backends/cpu/card.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/rotate.h"
#include "ops/rope.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

// Counts the heads of all tokens as one index.
template <RopePairs kPairs, class X>
void heads(const Rope::Problem& p, const Rope::Args& a, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t t = i / p.heads, position = a.positions.as<int32_t>()[t];
    if (position < 0 || position >= p.table_rows) continue;
    rotate_head<kPairs>(a.x.row<X>(t) + i % p.heads * p.head_dim + p.first,
                        a.table.as<const float>() + position * p.rotary, p.rotary / 2);
  }
}

}  // namespace

void rope_heads_simd(const Rope::Problem& p, const Rope::Args& a, int64_t begin, int64_t end) {
  with_float(p.x, [&]<class X>(const X*) {
    if (p.pairs == RopePairs::kHalves) {
      heads<RopePairs::kHalves, X>(p, a, begin, end);
    } else {
      heads<RopePairs::kInterleaved, X>(p, a, begin, end);
    }
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(rope_heads_simd);

namespace {

Refusal supports(const Rope::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const Rope::Problem& p, const DeviceInfo& d) {
  return roofline_us<Rope>(p, d, 0.8, 0.25 * d.f32_flops_per_us);
}

Status enqueue(const Rope::Problem& p, const Rope::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    q.pool->run(p.tokens * p.heads, 32, [&](int64_t begin, int64_t end, int) {
      SLUICE_SIMD(q, rope_heads_simd)(p, a, begin, end);
    });
  });
}

}  // namespace

extern const Candidate<Rope> rope_heads = {
    .name = "cpu.rope.heads",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<Rope>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
