// Expert GEMM by dot products with weights in checkpoint order.
//
// Wins    where weights are not packed because they are read in place (a mapped file), rarely, or for a few rows.
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
#include "backends/cpu/simd/expert_tile.h"
#include "backends/cpu/simd/mxfp4.h"
#include "ops/expert_gemm.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kDotRows = 4;  // rows of x that share the decoding of an MXFP4 block

// sums[t * 16] = x[t] . row of bf16.
template <class X>
void dot_row(const BF16* w, const uint8_t*, int64_t width, const X* const* x, int64_t rows, float* sums) {
  for (int64_t t = 0; t < rows; ++t) sums[t * kPanelRows] = dot(x[t], w, width);
}

template <int64_t kRows, class X>
void dot_rows(const uint8_t* codes, const uint8_t* scales, int64_t width, const X* const* x, float* sums) {
  const F32 d;
  constexpr int64_t kStep = kMxBlock / kMxVectors;
  hn::Vec<F32> total[kRows], w[kMxVectors];
  for (int64_t t = 0; t < kRows; ++t) total[t] = hn::Zero(d);
  for (int64_t k = 0; k < width; k += kMxBlock) {
    load_mx_block(codes + k / 2, w);
    const auto scale = hn::Set(d, e8m0_scalar(scales[k / kMxBlock]));
    for (int64_t t = 0; t < kRows; ++t) {
      auto block = hn::Mul(load_f32(x[t] + k), w[0]);
      for (int64_t v = 1; v < kMxVectors; ++v)
        block = hn::MulAdd(load_f32(x[t] + k + v * kStep), w[v], block);
      total[t] = hn::MulAdd(block, scale, total[t]);  // scaled after the sum: exact for every scale
    }
  }
  for (int64_t t = 0; t < kRows; ++t) sums[t * kPanelRows] = hn::GetLane(hn::SumOfLanes(d, total[t]));
}

// The same for a row of MXFP4.
template <class X>
void dot_row(const uint8_t* w, const uint8_t* scales, int64_t width, const X* const* x, int64_t rows,
             float* sums) {
  if (rows == kDotRows) return dot_rows<kDotRows>(w, scales, width, x, sums);
  for (int64_t t = 0; t < rows; ++t) dot_rows<1>(w, scales, width, x + t, sums + t * kPanelRows);
}

template <class X, class W, class Y>
void tiles(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, int64_t begin, int64_t end) {
  constexpr bool kMx = std::is_same_v<W, uint8_t>;
  const int64_t row_elements = kMx ? p.width / 2 : p.width;
  HWY_ALIGN float sums[2][kDotRows * kPanelRows] = {};
  for_each_tile(p, a, begin, end, kDotRows, [&](const ExpertTile& tile) {
    const X* x[kDotRows];
    for (int64_t t = 0; t < tile.rows; ++t) x[t] = expert_input<X>(p, a, tile.first_row + t);
    const int64_t halves = is_gated(p.act) ? 2 : 1;
    for (int64_t lane = 0; lane < std::min(kPanelRows, p.features - tile.first_feature); ++lane) {
      for (int64_t up = 0; up < halves; ++up) {
        const int64_t row = tile.expert * ExpertGemm::weight_rows(p) +
                            expert_weight_row(p, tile.first_feature + lane, up != 0);
        const uint8_t* scales = kMx ? a.w_scale.as<const uint8_t>() + row * (p.width / kMxBlock) : nullptr;
        dot_row(a.w.as<const W>() + row * row_elements, scales, p.width, x, tile.rows, sums[up] + lane);
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
      p.w == DType::kBF16 ? tiles<X, BF16, Y>(p, a, begin, end) : tiles<X, uint8_t, Y>(p, a, begin, end);
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
