// Router GEMM by dot products of rows.
//
// Wins    always: it is the only kernel of RouterGemm on a CPU. It reads weights in checkpoint order, in tiles of four rows by four tokens.
// Loses   to packed panels (linear) for many tokens, if the router's weights are packed.
// Limits  none beyond the contract.
// Source  original; the contract is ops/router_gemm.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/router_gemm_dot.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include "backends/cpu/card.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/dot.h"
#include "ops/router_gemm.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

template <class X, class W, class Y>
void rows(const RouterGemm::Problem& p, const RouterGemm::Args& a, int64_t begin, int64_t end) {
  const auto x = [&](int64_t t) { return static_cast<const X*>(a.x.row<const X>(t)); };
  const auto w = [&](int64_t e) { return static_cast<const W*>(a.w.row<const W>(e)); };
  for_each_dot(p.tokens, x, begin, end, w, p.hidden, [&](int64_t t, int64_t e, float sum) {
    const float bias = p.bias ? scalar_f32(a.bias.as<const W>()[e]) : 0.f;
    store_scalar(sum + bias, a.y.row<Y>(t) + e);
  });
}

}  // namespace

void router_gemm_rows(const RouterGemm::Problem& p, const RouterGemm::Args& a, int64_t begin, int64_t end) {
  with_float(p.x, [&]<class X>(const X*) {
    with_float(p.w, [&]<class W>(const W*) {
      with_float(p.y, [&]<class Y>(const Y*) { rows<X, W, Y>(p, a, begin, end); });
    });
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(router_gemm_rows);

namespace {

Refusal supports(const RouterGemm::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const RouterGemm::Problem& p, const DeviceInfo& d) {
  return roofline_us<RouterGemm>(p, d, 0.8, 0.7 * d.f32_flops_per_us);
}

Status enqueue(const RouterGemm::Problem& p, const RouterGemm::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    q.pool->run(p.experts, 4, [&](int64_t begin, int64_t end, int) {
      SLUICE_SIMD(q, router_gemm_rows)(p, a, begin, end);
    });
  });
}

}  // namespace

extern const Candidate<RouterGemm> router_gemm_dot = {
    .name = "cpu.router_gemm.dot",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RouterGemm>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
