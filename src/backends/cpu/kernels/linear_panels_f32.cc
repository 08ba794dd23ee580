// Dense layer on panels of 16 rows in f32: a block of weights is decoded once for up to 64 rows of x.
//
// Wins    without bf16 instructions, from a few rows of x on.
// Loses   to kernels that multiply bf16 pairs or tiles.
// Limits  weights in layout panels16, which ops/linear.h has only in bf16.
// Source  original; the contract is ops/linear.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/linear_panels_f32.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include "backends/cpu/card.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/linear_tile.h"
#include "backends/cpu/simd/panel.h"
#include "ops/linear.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

template <class X, class Y>
void panels(const Linear::Problem& p, const Linear::Args& a, int64_t begin, int64_t end) {
  const PanelShape shape = panel_shape(p.features, false, p.width);
  const int64_t panel_elements = kPanelRows * shape.width;
  HWY_ALIGN float sums[kTileRows * kPanelRows];
  for (int64_t panel = begin; panel < end; ++panel) {
    const BF16* w = a.w.as<const BF16>() + panel * panel_elements;
    for (int64_t row = 0; row < p.tokens; row += kTileRows) {
      const int64_t rows = std::min(kTileRows, p.tokens - row);
      multiply_panel(
          WeightFormat{}, w, nullptr, p.width, rows, [&](int64_t t) { return a.x.row<const X>(row + t); },
          sums);
      finish_linear_tile<Y>(p, a, {row, rows, panel * kPanelRows}, sums);
    }
  }
}

}  // namespace

void linear_panels_range(const Linear::Problem& p, const Linear::Args& a, int64_t begin, int64_t end) {
  with_float(p.x, [&]<class X>(const X*) {
    with_float(p.y, [&]<class Y>(const Y*) { panels<X, Y>(p, a, begin, end); });
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(linear_panels_range);

namespace {

Refusal supports(const Linear::Problem& p, const DeviceInfo&) {
  Refusal r;
  r.need(p.layout == WeightLayout::kPanels16, "layout panels16 (vectors hold one k of 16 rows)",
         "layout=" + std::string(word(p.layout)));
  return r;
}

double cost_us(const Linear::Problem& p, const DeviceInfo& d) {
  // Converting a weight to f32 costs as much as multiplying it by three rows of x (measured with 1 to 128 rows).
  const double work = 1 + 3 / std::max(1.0, static_cast<double>(p.tokens));
  return roofline_us<Linear>(p, d, 0.6, 0.85 * d.f32_flops_per_us / work);
}

Status enqueue(const Linear::Problem& p, const Linear::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    if (p.tokens == 0) return;
    const int64_t count = round_up(p.features, kPanelRows) / kPanelRows;
    q.pool->run(count, even_grain(count, *q.pool), [&](int64_t begin, int64_t end, int) {
      SLUICE_SIMD(q, linear_panels_range)(p, a, begin, end);
    });
  });
}

}  // namespace

extern const Candidate<Linear> linear_panels_f32 = {
    .name = "cpu.linear.panels_f32",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<Linear>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
