// RMS norm, one head of a row at a time: one pass sums the squares, a second pass scales.
//
// Wins    always: it is the only kernel of RmsNorm on a CPU. The second pass finds its row in the L1 cache.
// Loses   time with one very long row: one thread computes it.
// Limits  none beyond the contract.
// Source  original; the contract is ops/rms_norm.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/rms_norm_rows.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include <cmath>

#include "backends/cpu/card.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/dot.h"
#include "ops/rms_norm.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

// h of one row. Each pass adds the residual again, because storing the sum would
// need scratch memory, and the residual tensor has only its rounded value.
template <class X>
struct Joined {
  const X* x;
  const X* residual;  // may be null
  HWY_INLINE hn::Vec<F32> vector(int64_t i) const {
    return residual ? hn::Add(load_f32(x + i), load_f32(residual + i)) : load_f32(x + i);
  }
  HWY_INLINE float scalar(int64_t i) const {
    return residual ? scalar_f32(x[i]) + scalar_f32(residual[i]) : scalar_f32(x[i]);
  }
};

template <class X>
float sum_of_squares(const Joined<X>& h, int64_t n) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto h0 = h.vector(i), h1 = h.vector(i + lanes);
    s0 = hn::MulAdd(h0, h0, s0);
    s1 = hn::MulAdd(h1, h1, s1);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
  for (; i < n; ++i) sum += h.scalar(i) * h.scalar(i);
  return sum;
}

// y may alias x: every element is read before it is written.
template <class X, class W, class Y>
void scale_row(const Joined<X>& h, X* residual, const W* w, Y* y, int64_t n, float inverse) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto scale = hn::Set(d, inverse);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = h.vector(i);
    if (residual) store_f32(v, residual + i);
    store_f32(hn::Mul(hn::Mul(v, scale), load_f32(w + i)), y + i);
  }
  for (; i < n; ++i) {
    const float v = h.scalar(i);
    if (residual) store_scalar(v, residual + i);
    store_scalar(v * inverse * scalar_f32(w[i]), y + i);
  }
}

template <class X, class W, class Y>
void rows(const RmsNorm::Problem& p, const RmsNorm::Args& a, int64_t begin, int64_t end) {
  for (int64_t head = begin; head < end; ++head) {
    const int64_t t = head / p.heads, first = head % p.heads * p.hidden;
    X* residual = p.residual ? a.residual.row<X>(t) + first : nullptr;
    const Joined<X> h{a.x.row<const X>(t) + first, residual};
    const float mean = sum_of_squares(h, p.hidden) / static_cast<float>(p.hidden);
    const float inverse = 1.f / std::sqrt(mean + static_cast<float>(p.eps));
    scale_row(h, residual, a.weight.as<const W>(), a.y.row<Y>(t) + first, p.hidden, inverse);
  }
}

}  // namespace

// Heads [begin, end) of all rows.
void rms_norm_rows_simd(const RmsNorm::Problem& p, const RmsNorm::Args& a, int64_t begin, int64_t end) {
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
HWY_EXPORT(rms_norm_rows_simd);

namespace {

Refusal supports(const RmsNorm::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const RmsNorm::Problem& p, const DeviceInfo& d) {
  return roofline_us<RmsNorm>(p, d, 0.8, 0.25 * d.f32_flops_per_us);
}

Status enqueue(const RmsNorm::Problem& p, const RmsNorm::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    q.pool->run(p.tokens * p.heads, 2, [&](int64_t begin, int64_t end, int) {
      SLUICE_SIMD(q, rms_norm_rows_simd)(p, a, begin, end);
    });
  });
}

}  // namespace

extern const Candidate<RmsNorm> rms_norm_rows = {
    .name = "cpu.rms_norm.rows",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RmsNorm>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
