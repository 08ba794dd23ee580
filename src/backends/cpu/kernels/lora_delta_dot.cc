// LoRA delta by dot products: computes A x of up to kSlab tokens in scratch memory, then adds B (A x) to y.
//
// Wins    always: it is the only kernel of LoraDelta on a CPU. For few tokens and small ranks a router's A and B stay in cache.
// Loses   for many tokens of one adapter to two packed GEMMs; there is no such kernel.
// Limits  none beyond the contract; the scratch memory is bounded by kSlab.
// Source  original; the contract is ops/lora_delta.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/lora_delta_dot.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include <algorithm>

#include "backends/cpu/card.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/dot.h"
#include "ops/lora_delta.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

template <class X, class W>
void shrink(const LoraDelta::Problem& p, const LoraDelta::Args& a, int64_t t, int64_t r, float* out) {
  const int32_t adapter = a.adapter.as<const int32_t>()[t];
  if (adapter < 0 || adapter >= p.adapters) return;
  const W* row = a.a.as<const W>() + (adapter * p.rank + r) * p.hidden;
  *out = dot(row, a.x.row<const X>(t), p.hidden);
}

template <class W, class Y>
void expand(const LoraDelta::Problem& p, const LoraDelta::Args& a, int64_t t, const float* inner,
            int64_t begin, int64_t end) {
  const int32_t adapter = a.adapter.as<const int32_t>()[t];
  if (adapter < 0 || adapter >= p.adapters) return;
  const W* rows = a.b.as<const W>() + adapter * p.features * p.rank;
  const float scale = a.scale.as<const float>()[adapter];
  Y* y = a.y.row<Y>(t);
  for (int64_t n = begin; n < end; ++n)
    store_scalar(scalar_f32(y[n]) + scale * dot(rows + n * p.rank, inner, p.rank), y + n);
}

}  // namespace

// inner [tokens, rank]: A x of the tokens from `first` on. Computes entries `begin` to `end`, counted over all rows.
void lora_shrink(const LoraDelta::Problem& p, const LoraDelta::Args& a, int64_t first, float* inner,
                 int64_t begin, int64_t end) {
  with_float(p.x, [&]<class X>(const X*) {
    with_float(p.w, [&]<class W>(const W*) {
      for (int64_t i = begin; i < end; ++i) shrink<X, W>(p, a, first + i / p.rank, i % p.rank, inner + i);
    });
  });
}

// Computes features `begin` to `end` of y[t].
void lora_expand(const LoraDelta::Problem& p, const LoraDelta::Args& a, int64_t t, const float* inner,
                 int64_t begin, int64_t end) {
  with_float(p.w, [&]<class W>(const W*) {
    with_float(p.y, [&]<class Y>(const Y*) { expand<W, Y>(p, a, t, inner, begin, end); });
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(lora_shrink);
HWY_EXPORT(lora_expand);

namespace {

constexpr int64_t kSlab = 256;             // tokens whose A x is in scratch memory at a time
constexpr int64_t kFeatures = 128;         // outputs per work item
constexpr int64_t kChunkProducts = 65536;  // products for which another thread is worth its start

Refusal supports(const LoraDelta::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const LoraDelta::Problem& p, const DeviceInfo& d) {
  return roofline_us<LoraDelta>(p, d, 0.8, 0.5 * d.f32_flops_per_us) + d.launch_us;  // two loops
}

size_t workspace_bytes(const LoraDelta::Problem& p, const DeviceInfo&) {
  return static_cast<size_t>(std::min(p.tokens, kSlab) * p.rank) * sizeof(float);
}

void run_slab(const LoraDelta::Problem& p, const LoraDelta::Args& a, int64_t first, float* inner, Queue& q) {
  const int64_t tokens = std::min(kSlab, p.tokens - first);
  q.pool->run(tokens * p.rank, kChunkProducts / p.hidden + 1, [&](int64_t begin, int64_t end, int) {
    SLUICE_SIMD(q, lora_shrink)(p, a, first, inner, begin, end);
  });
  const int64_t pieces = (p.features + kFeatures - 1) / kFeatures;
  const int64_t grain = kChunkProducts / (kFeatures * p.rank) + 1;
  q.pool->run(tokens * pieces, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / pieces, n = i % pieces * kFeatures;
      SLUICE_SIMD(q, lora_expand)
      (p, a, first + t, inner + t * p.rank, n, std::min(n + kFeatures, p.features));
    }
  });
}

Status enqueue(const LoraDelta::Problem& p, const LoraDelta::Args& a, Workspace w, Stream s) {
  return submit(s, [p, a, w](Queue& q) {
    for (int64_t first = 0; first < p.tokens; first += kSlab)
      run_slab(p, a, first, reinterpret_cast<float*>(w.data), q);
  });
}

}  // namespace

extern const Candidate<LoraDelta> lora_delta_dot = {
    .name = "cpu.lora_delta.dot",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
