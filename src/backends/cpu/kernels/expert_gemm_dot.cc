// Expert GEMM by dot products with weights in checkpoint order.
//
// Wins    where packing costs more than it saves: for weights that are read in place (a mapped file), that are rarely used, or
//         that are multiplied with only a few rows.
// Loses   to panels, which decode once for 64 rows instead of 4 and need no horizontal sum.
// Limits  layout row_major.
// Source  original; the contract is ops/expert_gemm.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/expert_gemm_dot.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include "backends/cpu/card.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/e4m3.h"
#include "backends/cpu/simd/expert_tile.h"
#include "backends/cpu/simd/mxfp4.h"
#include "ops/expert_gemm.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kDotRows = 4;  // rows of x that share the decoding of an MXFP4 block

// A row of weights in the checkpoint's order.
template <class W>
struct WeightRow {
  WeightFormat format;
  const W* codes;
  const uint8_t* scales;
  int64_t width;
};

// sums[t * 16] = x[t] . row of bf16.
template <class X>
void dot_row(const WeightRow<BF16>& w, const X* const* x, int64_t rows, float* sums) {
  for (int64_t t = 0; t < rows; ++t) sums[t * kPanelRows] = dot(x[t], w.codes, w.width);
}

// nv: the factors of the codes from column k on, exact. mx: 1.
HWY_INLINE hn::Vec<F32> inner_scale(const WeightRow<uint8_t>& w, int64_t k) {
  const bool nv = w.format.scales == WeightScales::kNv;
  return hn::Set(F32(), nv ? to_float(E4M3{w.scales[k / kNvBlock]}) : 1.f);
}
HWY_INLINE float block_scale(const WeightRow<uint8_t>& w, int64_t k) {
  return w.format.scales == WeightScales::kMx ? e8m0_scalar(w.scales[k / kMxBlock]) : 1.f;
}

template <int64_t kRows, class X>
void dot_rows(const WeightRow<uint8_t>& row, const X* const* x, float* sums) {
  const F32 d;
  constexpr int64_t kStep = kMxBlock / kMxVectors;
  hn::Vec<F32> total[kRows], w[kMxVectors];
  for (int64_t t = 0; t < kRows; ++t) total[t] = hn::Zero(d);
  for (int64_t k = 0; k < row.width; k += kMxBlock) {
    load_mx_block(row.codes + k / 2, w);
    for (int64_t v = 0; v < kMxVectors; ++v) w[v] = hn::Mul(w[v], inner_scale(row, k + v * kStep));
    const auto scale = hn::Set(d, block_scale(row, k));
    for (int64_t t = 0; t < kRows; ++t) {
      auto block = hn::Mul(load_f32(x[t] + k), w[0]);
      for (int64_t v = 1; v < kMxVectors; ++v)
        block = hn::MulAdd(load_f32(x[t] + k + v * kStep), w[v], block);
      total[t] = hn::MulAdd(block, scale, total[t]);  // scaled after the sum, which is exact for every scale
    }
  }
  for (int64_t t = 0; t < kRows; ++t) sums[t * kPanelRows] = hn::GetLane(hn::SumOfLanes(d, total[t]));
}

// e4m3: sums over the columns of one scale, times the scale.
template <int64_t kRows, class X>
void dot_rows(const WeightRow<E4M3>& row, const X* const* x, float* sums) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t group = row.format.columns() > 0 ? row.format.columns() : row.width;
  hn::Vec<F32> total[kRows];
  float rest[kRows] = {};
  for (int64_t t = 0; t < kRows; ++t) total[t] = hn::Zero(d);
  for (int64_t begin = 0; begin < row.width; begin += group) {
    const int64_t end = std::min(row.width, begin + group);
    const float scale = row.format.scales == WeightScales::kMx ? e8m0_scalar(row.scales[begin / group])
                        : row.format.scales == WeightScales::kBlocks
                            ? load_f32_bytes(row.scales + begin / group * 4)
                            : 1.f;
    hn::Vec<F32> sum[kRows];
    for (int64_t t = 0; t < kRows; ++t) sum[t] = hn::Zero(d);
    int64_t k = begin;
    for (; k + lanes <= end; k += lanes) {
      const auto w = load_f32(row.codes + k);
      for (int64_t t = 0; t < kRows; ++t) sum[t] = hn::MulAdd(load_f32(x[t] + k), w, sum[t]);
    }
    for (int64_t t = 0; t < kRows; ++t) {
      total[t] = hn::MulAdd(sum[t], hn::Set(d, scale), total[t]);
      float tail = 0;
      for (int64_t i = k; i < end; ++i) tail += scalar_f32(x[t][i]) * to_float(row.codes[i]);
      if (k < end) rest[t] += tail * scale;
    }
  }
  for (int64_t t = 0; t < kRows; ++t)
    sums[t * kPanelRows] = hn::GetLane(hn::SumOfLanes(d, total[t])) + rest[t];
}

// The same for a row with scales.
template <class W, class X>
void dot_row(const WeightRow<W>& w, const X* const* x, int64_t rows, float* sums) {
  if (rows == kDotRows) {
    dot_rows<kDotRows>(w, x, sums);
  } else {
    for (int64_t t = 0; t < rows; ++t) dot_rows<1>(w, x + t, sums + t * kPanelRows);
  }
  if (!w.format.has_row_scale()) return;
  const float scale = load_f32_bytes(w.scales + w.format.column_scales(w.width));
  for (int64_t t = 0; t < rows; ++t) sums[t * kPanelRows] *= scale;
}

template <class X, class W, class Y>
void tiles(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, int64_t begin, int64_t end) {
  const WeightFormat f = ExpertGemm::format(p);
  const int64_t row_elements = std::is_same_v<W, uint8_t> ? p.width / 2 : p.width;
  HWY_ALIGN float sums[2][kDotRows * kPanelRows] = {};
  for_each_tile(p, a, begin, end, kDotRows, [&](const ExpertTile& tile) {
    const X* x[kDotRows];
    for (int64_t t = 0; t < tile.rows; ++t) x[t] = expert_input<X>(p, a, tile.first_row + t);
    const int64_t halves = is_gated(p.act) ? 2 : 1;
    for (int64_t lane = 0; lane < std::min(kPanelRows, p.features - tile.first_feature); ++lane) {
      for (int64_t up = 0; up < halves; ++up) {
        const int64_t row = tile.expert * ExpertGemm::weight_rows(p) +
                            expert_weight_row(p, tile.first_feature + lane, up != 0);
        const uint8_t* scales =
            f.scaled() ? a.w_scale.as<const uint8_t>() + row * f.row_scale_bytes(p.width) : nullptr;
        dot_row(WeightRow<W>{f, a.w.as<const W>() + row * row_elements, scales, p.width}, x, tile.rows,
                sums[up] + lane);
      }
    }
    finish_tile<Y>(p, a, tile, sums[0], sums[1]);
  });
}

}  // namespace

void expert_gemm_dot_tiles(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, int64_t begin,
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
HWY_EXPORT(expert_gemm_dot_tiles);

namespace {

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo&) {
  Refusal r;
  r.need(p.layout == WeightLayout::kRowMajor, "layout row_major (dot products along a row)",
         "layout=" + std::string(word(p.layout)));
  return r;
}

double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  return roofline_us<ExpertGemm>(p, d, 0.5, 0.3 * d.f32_flops_per_us);
}

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    if (p.rows == 0) return;
    const int64_t count = p.experts * (round_up(p.features, kPanelRows) / kPanelRows);
    q.pool->run(count, even_grain(count, *q.pool), [&](int64_t begin, int64_t end, int) {
      SLUICE_SIMD(q, expert_gemm_dot_tiles)(p, a, begin, end);
    });
  });
}

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_dot = {
    .name = "cpu.expert_gemm.dot",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<ExpertGemm>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
