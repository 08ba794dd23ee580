// The common parts of the expert GEMMs around their sums: the rows of a tile, and the epilogue from sums to y.
// Highway's per-target header: include inside a file that uses foreach_target.h, after hwy/highway.h.
#if defined(SLUICE_CPU_SIMD_EXPERT_TILE_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_SIMD_EXPERT_TILE_H
#undef SLUICE_CPU_SIMD_EXPERT_TILE_H
#else
#define SLUICE_CPU_SIMD_EXPERT_TILE_H
#endif

#include <algorithm>

#include "backends/cpu/simd/activation.h"
#include "backends/cpu/simd/dot.h"
#include "ops/expert_gemm.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 16 features of some rows of one expert.
struct ExpertTile {
  int64_t expert, first_row, rows, first_feature;
};

// The row of x for row `r` of y.
template <class X>
HWY_INLINE const X* expert_input(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, int64_t r) {
  return a.x.row<const X>(p.slots > 0 ? a.order.as<const int32_t>()[r] / p.slots : r);
}

// The checkpoint row of a feature's gate or up, or of the feature if the layer is not gated. Biases always have this order.
HWY_INLINE int64_t expert_weight_row(const ExpertGemm::Problem& p, int64_t feature, bool up) {
  return is_gated(p.act) ? gated_row(p.gate_order, p.features, feature, up) : feature;
}

// The bias of 16 features; zeros past the last feature.
HWY_INLINE void expert_bias(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, const ExpertTile& tile,
                            bool up, float* out) {
  std::fill_n(out, kPanelRows, 0.f);
  if (!p.bias) return;
  const int64_t count = std::min(kPanelRows, p.features - tile.first_feature);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at =
        tile.expert * ExpertGemm::weight_rows(p) + expert_weight_row(p, tile.first_feature + i, up);
    out[i] = p.b == DType::kBF16 ? to_float(a.bias.as<const BF16>()[at]) : a.bias.as<const float>()[at];
  }
}

HWY_INLINE ActivationF32 expert_activation(const ExpertGemm::Problem& p, const ExpertGemm::Args& a,
                                           int64_t expert) {
  if (!p.per_expert) return activation_f32(p.act, {p.alpha, p.beta, p.limit});
  const float* params = a.act_params.as<const float>() + 3 * expert;
  return {p.act, params[0], params[1], params[2]};
}

// y = act(in * gate + bias, in * up + bias) for one tile. gate and up are sums [rows][16], aligned to a vector; up is not read if the
// layer is not gated.
template <class Y>
HWY_NOINLINE void finish_tile(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, const ExpertTile& tile,
                              const float* gate, const float* up) {
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const bool gated = is_gated(p.act);
  HWY_ALIGN float gate_bias[kPanelRows], up_bias[kPanelRows], out[kPanelRows];
  expert_bias(p, a, tile, false, gate_bias);
  if (gated) expert_bias(p, a, tile, true, up_bias);
  const ActivationF32 activation = expert_activation(p, a, tile.expert);
  const int64_t count = std::min(kPanelRows, p.features - tile.first_feature);
  for (int64_t t = 0; t < tile.rows; ++t) {
    const int64_t r = tile.first_row + t;
    const float weight = p.weighted ? a.weights.as<const float>()[a.order.as<const int32_t>()[r]] : 1.f;
    const auto in = hn::Set(d, weight);
    for (int64_t i = 0; i < kPanelRows; i += lanes) {
      const auto g = hn::MulAdd(in, hn::Load(d, gate + t * kPanelRows + i), hn::Load(d, gate_bias + i));
      const auto u =
          gated ? hn::MulAdd(in, hn::Load(d, up + t * kPanelRows + i), hn::Load(d, up_bias + i)) : g;
      hn::Store(activate(d, activation, g, u), d, out + i);
    }
    Y* y = a.y.row<Y>(r) + tile.first_feature;
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) store_f32(hn::Load(d, out + i), y + i);
    for (; i < count; ++i) store_scalar(out[i], y + i);
  }
}

// Calls tile_work(ExpertTile) for indices [begin, end) of (16 features, expert). The expert changes fastest, so that experts with
// many rows are spread over the range. A tile has at most `max_rows` rows. The weights of an expert without rows are not read.
template <class TileWork>
HWY_INLINE void for_each_tile(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, int64_t begin,
                              int64_t end, int64_t max_rows, TileWork tile_work) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t expert = i % p.experts;
    const int64_t first = a.row_begin.as<const int32_t>()[expert],
                  count = a.row_count.as<const int32_t>()[expert];
    for (int64_t t = 0; t < count; t += max_rows)
      tile_work(ExpertTile{expert, first + t, std::min(max_rows, count - t), i / p.experts * kPanelRows});
  }
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
