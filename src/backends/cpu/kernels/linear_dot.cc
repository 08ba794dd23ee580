// Dense layer by dot products of rows.
//
// Wins    for weights that are not packed: it reads them in checkpoint order, in tiles of four rows of weights by four rows of x.
// Loses   for many rows of x to panels that multiply bf16 pairs or tiles.
// Limits  layout row_major.
// Source  original; the contract is ops/linear.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/linear_dot.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include "backends/cpu/card.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/dot.h"
#include "ops/linear.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

template <class X, class W, class Y>
void rows(const Linear::Problem& p, const Linear::Args& a, int64_t begin, int64_t end) {
  const auto x = [&](int64_t t) { return static_cast<const X*>(a.x.row<const X>(t)); };
  const auto w = [&](int64_t n) { return static_cast<const W*>(a.w.row<const W>(n)); };
  for_each_dot(p.tokens, x, begin, end, w, p.width, [&](int64_t t, int64_t n, float sum) {
    if (p.bias) sum += scalar_f32(a.bias.as<const W>()[n]);
    if (p.residual) sum += scalar_f32(a.residual.row<const Y>(t)[n]);
    store_scalar(sum, a.y.row<Y>(t) + n);
  });
}

}  // namespace

void linear_dot_rows(const Linear::Problem& p, const Linear::Args& a, int64_t begin, int64_t end) {
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
HWY_EXPORT(linear_dot_rows);

namespace {

Refusal supports(const Linear::Problem& p, const DeviceInfo&) {
  Refusal r;
  r.need(p.layout == WeightLayout::kRowMajor, "layout row_major (dot products along a row)",
         "layout=" + std::string(word(p.layout)));
  return r;
}

double cost_us(const Linear::Problem& p, const DeviceInfo& d) {
  return roofline_us<Linear>(p, d, 0.8, 0.7 * d.f32_flops_per_us);
}

Status enqueue(const Linear::Problem& p, const Linear::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    if (p.tokens == 0) return;
    q.pool->run(p.features, even_grain(p.features, *q.pool), [&](int64_t begin, int64_t end, int) {
      SLUICE_SIMD(q, linear_dot_rows)(p, a, begin, end);
    });
  });
}

}  // namespace

extern const Candidate<Linear> linear_dot = {
    .name = "cpu.linear.dot",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<Linear>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
