// The epilogue of a dense layer, from sums to y.
// Highway's per-target header: include inside a file that uses foreach_target.h, after hwy/highway.h.
#if defined(SLUICE_CPU_SIMD_LINEAR_TILE_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_SIMD_LINEAR_TILE_H
#undef SLUICE_CPU_SIMD_LINEAR_TILE_H
#else
#define SLUICE_CPU_SIMD_LINEAR_TILE_H
#endif

#include <algorithm>

#include "backends/cpu/simd/dot.h"
#include "ops/linear.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 16 features of some rows.
struct LinearTile {
  int64_t first_row, rows, first_feature;
};

// Adds bias and residual to sums [rows][16], aligned to a vector, and stores them.
template <class Y>
HWY_INLINE void finish_linear_tile(const Linear::Problem& p, const Linear::Args& a, const LinearTile& tile,
                                   const float* sums) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(F32())), first = tile.first_feature;
  const int64_t count = std::min(kPanelRows, p.features - first);
  for (int64_t t = 0; t < tile.rows; ++t, sums += kPanelRows) {
    const BF16* bias = p.bias ? a.bias.as<const BF16>() + first : nullptr;
    const Y* residual = p.residual ? a.residual.row<const Y>(tile.first_row + t) + first : nullptr;
    Y* y = a.y.row<Y>(tile.first_row + t) + first;
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
      auto v = hn::Load(F32(), sums + i);
      if (bias) v = hn::Add(v, load_f32(bias + i));
      if (residual) v = hn::Add(v, load_f32(residual + i));
      store_f32(v, y + i);
    }
    for (; i < count; ++i) {
      float v = sums[i];
      if (bias) v += scalar_f32(bias[i]);
      if (residual) v += scalar_f32(residual[i]);
      store_scalar(v, y + i);
    }
  }
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
