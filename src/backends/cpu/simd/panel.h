// Products with panels of 16 rows (WeightLayout::kPanels16) in f32.
// Highway's per-target header: include inside a file that uses foreach_target.h, after hwy/highway.h.
//
// A block of 32 k is decoded once, without its scales, and used for all rows of a tile.
// Each row's sum over the block is scaled and then added to its total. So scaling is
// exact for every scale from 0 to 254, although the weight 6 * 2^127 would not be an f32.
#if defined(SLUICE_CPU_SIMD_PANEL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_SIMD_PANEL_H
#undef SLUICE_CPU_SIMD_PANEL_H
#else
#define SLUICE_CPU_SIMD_PANEL_H
#endif

#include <algorithm>
#include <type_traits>

#include "backends/cpu/simd/e4m3.h"
#include "backends/cpu/simd/mxfp4.h"
#include "ops/weight_layout.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kBlock = 32;     // values of k decoded at a time; they share a scale
constexpr int64_t kTileRows = 64;  // rows of x per decoding: their sums and inputs fit the L1 cache
constexpr int64_t kPanelLanes = static_cast<int64_t>(hn::MaxLanes(F32()));
constexpr int64_t kPanelVectors = kPanelRows / kPanelLanes;  // vectors that hold one k of a panel
static_assert(kPanelVectors * kPanelLanes == kPanelRows);

// bf16: [16 pairs][16 lanes][2].
HWY_INLINE void decode_block(const BF16* HWY_RESTRICT block, float* HWY_RESTRICT out) {
  const U32 du;
  const auto* words = reinterpret_cast<const uint32_t*>(block);
  for (int64_t i = 0; i < kBlock / 2 * kPanelRows; i += kPanelLanes) {
    const auto pair = hn::LoadU(du, words + i);
    float* even = out + i / kPanelRows * 2 * kPanelRows + i % kPanelRows;
    hn::Store(hn::BitCast(F32(), hn::ShiftLeft<16>(pair)), F32(), even);
    hn::Store(hn::BitCast(F32(), hn::And(pair, hn::Set(du, 0xFFFF0000u))), F32(), even + kPanelRows);
  }
}

// mxfp4: [4][16 lanes] words of eight codes, the even k in the low half.
HWY_INLINE void decode_block(const uint8_t* HWY_RESTRICT block, float* HWY_RESTRICT out) {
  const U32 du;
  const auto nibble = hn::Set(du, 15u);
  const auto* words = reinterpret_cast<const uint32_t*>(block);
  for (int64_t i = 0; i < 4 * kPanelRows; i += kPanelLanes) {
    auto even = hn::LoadU(du, words + i);
    auto odd = hn::ShiftRight<16>(even);
    float* to = out + i / kPanelRows * 8 * kPanelRows + i % kPanelRows;
    for (int pair = 0; pair < 4; ++pair, to += 2 * kPanelRows) {
      hn::Store(e2m1_f32(hn::And(even, nibble)), F32(), to);
      hn::Store(e2m1_f32(hn::And(odd, nibble)), F32(), to + kPanelRows);
      even = hn::ShiftRight<4>(even);
      odd = hn::ShiftRight<4>(odd);
    }
  }
}

// e4m3: [32][16 lanes].
HWY_INLINE void decode_block(const E4M3* HWY_RESTRICT block, float* HWY_RESTRICT out) {
  for (int64_t i = 0; i < kBlock * kPanelRows; i += kPanelLanes)
    hn::Store(load_f32(block + i), F32(), out + i);
}

// Multiplies the codes of a block of 32 k by their scales, one per 16 k. Exact: a code has 2 significant bits, a scale has 4.
HWY_INLINE void scale_nv_block(const uint8_t* HWY_RESTRICT scales, float* HWY_RESTRICT weights) {
  const F32 d;
  for (int64_t group = 0; group < kBlock / kNvBlock; ++group)
    for (int64_t v = 0; v < kPanelRows; v += kPanelLanes) {
      const auto scale = load_f32(reinterpret_cast<const E4M3*>(scales + group * kPanelRows + v));
      for (int64_t k = group * kNvBlock; k < (group + 1) * kNvBlock; ++k) {
        float* w = weights + k * kPanelRows + v;
        hn::Store(hn::Mul(hn::Load(d, w), scale), d, w);
      }
    }
}

// Columns k .. k + 31 of a row of x; zeros past its end.
template <class X>
HWY_INLINE void widen_block(const X* HWY_RESTRICT x, int64_t columns, float* HWY_RESTRICT out) {
  if (columns >= kBlock) {
    for (int64_t k = 0; k < kBlock; k += kPanelLanes) hn::Store(load_f32(x + k), F32(), out + k);
    return;
  }
  for (int64_t k = 0; k < kBlock; ++k) out[k] = k < columns ? scalar_f32(x[k]) : 0.f;
}

// sums[t] += scale * (x[t] . weights) for kRows rows. Even and odd k have separate sums: with one row, twice as
// many chains hide the latency of a multiply-add. scale = null means 1. Not inlined, like finish_tile: a call costs
// almost nothing here, but with a copy for every type of x and y, builds with sanitizers would take minutes longer.
template <int64_t kRows>
HWY_NOINLINE void multiply_rows(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT x,
                                const float* HWY_RESTRICT scale, float* HWY_RESTRICT sums) {
  const F32 d;
  hn::Vec<F32> even[kRows][kPanelVectors], odd[kRows][kPanelVectors];
  for (int64_t t = 0; t < kRows; ++t)
    for (int64_t v = 0; v < kPanelVectors; ++v) even[t][v] = odd[t][v] = hn::Zero(d);
  for (int64_t k = 0; k < kBlock; k += 2) {
    for (int64_t v = 0; v < kPanelVectors; ++v) {
      const auto w0 = hn::Load(d, weights + k * kPanelRows + v * kPanelLanes);
      const auto w1 = hn::Load(d, weights + (k + 1) * kPanelRows + v * kPanelLanes);
      for (int64_t t = 0; t < kRows; ++t) {
        even[t][v] = hn::MulAdd(hn::Set(d, x[t * kBlock + k]), w0, even[t][v]);
        odd[t][v] = hn::MulAdd(hn::Set(d, x[t * kBlock + k + 1]), w1, odd[t][v]);
      }
    }
  }
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t v = 0; v < kPanelVectors; ++v) {
      float* sum = sums + t * kPanelRows + v * kPanelLanes;
      const auto block = hn::Add(even[t][v], odd[t][v]);
      const auto s = scale ? hn::LoadU(d, scale + v * kPanelLanes) : hn::Set(d, 1.f);
      hn::Store(hn::MulAdd(block, s, hn::Load(d, sum)), d, sum);
    }
  }
}

// The largest number of rows whose sums fit in registers. Fewer rows
// are computed in smaller steps, with the same arithmetic for each row.
constexpr int64_t kRegisterRows = kPanelVectors == 1 ? 8 : kPanelVectors == 2 ? 2 : 1;

template <int64_t kRows = kRegisterRows>
HWY_INLINE void multiply_block(const float* weights, const float* x, const float* scale, int64_t rows,
                               float* sums) {
  int64_t t = 0;
  for (; t + kRows <= rows; t += kRows)
    multiply_rows<kRows>(weights, x + t * kBlock, scale, sums + t * kPanelRows);
  if constexpr (kRows > 1)
    multiply_block<kRows / 2>(weights, x + t * kBlock, scale, rows - t, sums + t * kPanelRows);
}

// The scales of the 32 columns from k on as one f32 for each lane; null if they are 1, or already in the weights.
HWY_INLINE const float* block_scales(WeightFormat f, const uint8_t* HWY_RESTRICT scales, int64_t k,
                                     float* HWY_RESTRICT out) {
  if (!f.scaled()) return nullptr;
  if (f.scales == WeightScales::kBlocks)
    return reinterpret_cast<const float*>(scales) + k / kScaleColumns * kPanelRows;
  if (f.scales != WeightScales::kMx) return nullptr;
  const hn::Rebind<uint8_t, F32> bytes;
  scales += k / kMxBlock * kPanelRows;
  for (int64_t v = 0; v < kPanelRows; v += kPanelLanes)
    hn::Store(e8m0_f32(hn::PromoteTo(U32(), hn::LoadU(bytes, scales + v))), F32(), out + v);
  return out;
}

// sums[t, lane] = row_of(t) . row `lane` of the panel, for rows <= kTileRows; [rows][16], aligned to a vector. `width` is x's width; W is
// BF16, E4M3, or uint8_t for e2m1. scales: of this panel (ops/weight_layout.h).
template <class W, class RowOf>
HWY_INLINE void multiply_panel(WeightFormat f, const W* HWY_RESTRICT panel,
                               const uint8_t* HWY_RESTRICT scales, int64_t width, int64_t rows, RowOf row_of,
                               float* HWY_RESTRICT sums) {
  constexpr int64_t kBlockElements =
      std::is_same_v<W, uint8_t> ? kBlock * kPanelRows / 2 : kBlock * kPanelRows;
  HWY_ALIGN float weights[kBlock * kPanelRows];
  HWY_ALIGN float x[kTileRows * kBlock];
  HWY_ALIGN float scale[kPanelRows];
  std::fill_n(sums, rows * kPanelRows, 0.f);
  for (int64_t k = 0; k < width; k += kBlock, panel += kBlockElements) {
    decode_block(panel, weights);
    if constexpr (std::is_same_v<W, uint8_t>) {
      if (f.scales == WeightScales::kNv) scale_nv_block(scales + k / kNvBlock * kPanelRows, weights);
    }
    for (int64_t t = 0; t < rows; ++t) widen_block(row_of(t) + k, width - k, x + t * kBlock);
    multiply_block(weights, x, block_scales(f, scales, k, scale), rows, sums);
  }
  if (!f.has_row_scale()) return;
  const F32 d;
  const auto* factor =
      reinterpret_cast<const float*>(scales + f.column_scales(round_up(width, kBlock)) * kPanelRows);
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t v = 0; v < kPanelRows; v += kPanelLanes) {
      float* sum = sums + t * kPanelRows + v;
      hn::Store(hn::Mul(hn::Load(d, sum), hn::LoadU(d, factor + v)), d, sum);
    }
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
