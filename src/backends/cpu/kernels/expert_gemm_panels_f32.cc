// Expert GEMM on panels of 16 rows in f32: a block of weights is decoded once for up to 64 rows of x.
//
// Wins    without bf16 instructions: weights are read once and in order, and each element of x is used for 16 features.
// Loses   to kernels that multiply bf16 pairs or tiles, by a factor of 2 to 30 in arithmetic.
// Limits  layout panels16.
// Source  original; the contract is ops/expert_gemm.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/expert_gemm_panels_f32.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include "backends/cpu/card.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/expert_tile.h"
#include "backends/cpu/simd/panel.h"
#include "ops/expert_gemm.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

template <class X, class W, class Y>
void tiles(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, int64_t begin, int64_t end) {
  const PanelShape shape = ExpertGemm::panels(p);
  const WeightFormat f = ExpertGemm::format(p);
  const int64_t panel_bytes = shape.code_bytes(f) / shape.panels, panel_scales = shape.panel_scale_bytes(f);
  HWY_ALIGN float sums[2][kTileRows * kPanelRows];
  for_each_tile(p, a, begin, end, kTileRows, [&](const ExpertTile& tile) {
    const int64_t halves = is_gated(p.act) ? 2 : 1;
    for (int64_t up = 0; up < halves; ++up) {
      const int64_t panel =
          tile.expert * shape.panels + panel_row(is_gated(p.act), tile.first_feature, up != 0).panel;
      const uint8_t* codes = a.w.as<const uint8_t>() + panel * panel_bytes;
      const uint8_t* scales = f.scaled() ? a.w_scale.as<const uint8_t>() + panel * panel_scales : nullptr;
      const auto row_of = [&](int64_t t) { return expert_input<X>(p, a, tile.first_row + t); };
      multiply_panel(f, reinterpret_cast<const W*>(codes), scales, p.width, tile.rows, row_of, sums[up]);
    }
    finish_tile<Y>(p, a, tile, sums[0], sums[1]);
  });
}

}  // namespace

void expert_gemm_panels_tiles(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, int64_t begin,
                              int64_t end) {
  with_float(p.x, [&]<class X>(const X*) {
    with_float(p.y, [&]<class Y>(const Y*) {
      p.w == DType::kBF16   ? tiles<X, BF16, Y>(p, a, begin, end)
      : p.w == DType::kE4M3 ? tiles<X, E4M3, Y>(p, a, begin, end)
                            : tiles<X, uint8_t, Y>(p, a, begin, end);
    });
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(expert_gemm_panels_tiles);

namespace {

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo&) {
  Refusal r;
  r.need(p.layout == WeightLayout::kPanels16, "layout panels16 (vectors hold one k of 16 rows)",
         "layout=" + std::string(word(p.layout)));
  return r;
}

double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  // Decoding a weight costs as much as the products of three rows (measured with 1 to 128 rows).
  const double rows = std::max(1.0, ExpertGemm::expected_rows(p));
  const double work = 1 + 3 * active_experts(rows, p.experts) / rows;
  return roofline_us<ExpertGemm>(p, d, 0.6, 0.85 * d.f32_flops_per_us / work);
}

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    if (p.rows == 0) return;
    const int64_t count = p.experts * (round_up(p.features, kPanelRows) / kPanelRows);
    q.pool->run(count, even_grain(count, *q.pool), [&](int64_t begin, int64_t end, int) {
      SLUICE_SIMD(q, expert_gemm_panels_tiles)(p, a, begin, end);
    });
  });
}

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_panels_f32 = {
    .name = "cpu.expert_gemm.panels_f32",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<ExpertGemm>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
