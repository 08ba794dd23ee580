// Expert GEMM on the layout of the Hopper kernels. It reads each weight separately, by the layout's index functions.
//
// Wins    never in speed. With it a machine without a GPU can use and check weights that were packed for a GPU.
// Loses   to every kernel of another layout, by two orders of magnitude.
// Limits  layout fragments.
// Source  original; the contract is ops/expert_gemm.h, the layout ops/fragment_layout.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/expert_gemm_fragments_plain.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include <cmath>

#include "backends/cpu/card.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/expert_tile.h"
#include "ops/expert_gemm.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kPlainRows = 8;  // rows of x for which a weight is read once

// One expert's packed bytes.
class PackedWeights {
 public:
  PackedWeights(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, int64_t expert)
      : shape_(ExpertGemm::fragments(p)), format_(ExpertGemm::format(p)) {
    w_ = a.w.as<const uint8_t>() + expert * shape_.code_bytes(format_);
    if (format_.scaled()) scales_ = a.w_scale.as<const uint8_t>() + expert * shape_.scale_bytes(format_);
  }
  // Returns double, because a weight with the largest scale can exceed f32 while its product with x does not.
  double at(FragmentRow r, int64_t k) const {
    if (!format_.scaled())
      return to_float(reinterpret_cast<const BF16*>(w_)[fragment_bf16_index(shape_, r, k)]);
    return code(r, k) * scale(r, k);
  }

 private:
  double code(FragmentRow r, int64_t k) const {
    if (format_.w == DType::kE4M3) return to_float(E4M3{w_[fragment_code8_index(shape_, r, k)]});
    const FragmentCode c = fragment_code(shape_, r, k);
    const uint32_t word = reinterpret_cast<const uint32_t*>(w_)[c.word];
    return kE2M1Values[fragment_code_of(fragment_pair(word, c.pair), c.half)];
  }
  double scale(FragmentRow r, int64_t k) const {
    if (format_.scales == WeightScales::kMx) {
      const uint8_t stored = scales_[fragment_scale_index(shape_, r, k)];
      if (stored == kFragmentNan) return e8m0_value(255);
      return std::ldexp(1.0, fragment_scale(stored, scales_[fragment_top_index(shape_, r)]) - 127);
    }
    const double factor = load_f32_bytes(scales_ + fragment_factor_index(shape_, format_, r));
    switch (format_.scales) {
      case WeightScales::kNv:
        return to_float(E4M3{fragment_nv_scale(scales_[fragment_nv_index(shape_, r, k)])}) * factor / 128;
      case WeightScales::kBlocks:
        return load_f32_bytes(scales_ + 4 * fragment_block_scale_index(shape_, r, k)) * factor;
      default:
        return factor;
    }
  }
  FragmentShape shape_;
  WeightFormat format_;
  const uint8_t *w_ = nullptr, *scales_ = nullptr;
};

template <class X, class Y>
void tiles(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, int64_t begin, int64_t end) {
  HWY_ALIGN float sums[2][kPlainRows * kPanelRows] = {};
  for_each_tile(p, a, begin, end, kPlainRows, [&](const ExpertTile& tile) {
    const PackedWeights weights(p, a, tile.expert);
    const int64_t halves = is_gated(p.act) ? 2 : 1;
    for (int64_t lane = 0; lane < std::min(kPanelRows, p.features - tile.first_feature); ++lane) {
      for (int64_t up = 0; up < halves; ++up) {
        const FragmentRow row = fragment_row(is_gated(p.act), tile.first_feature + lane, up != 0);
        double sum[kPlainRows] = {};
        for (int64_t k = 0; k < p.width; ++k) {
          const double w = weights.at(row, k);
          for (int64_t t = 0; t < tile.rows; ++t)
            sum[t] += w * double{scalar_f32(expert_input<X>(p, a, tile.first_row + t)[k])};
        }
        for (int64_t t = 0; t < tile.rows; ++t) sums[up][t * kPanelRows + lane] = static_cast<float>(sum[t]);
      }
    }
    finish_tile<Y>(p, a, tile, sums[0], sums[1]);
  });
}

}  // namespace

void expert_gemm_fragments_tiles(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, int64_t begin,
                                 int64_t end) {
  with_float(p.x, [&]<class X>(const X*) {
    with_float(p.y, [&]<class Y>(const Y*) { tiles<X, Y>(p, a, begin, end); });
  });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(expert_gemm_fragments_tiles);

namespace {

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo&) {
  Refusal r;
  r.need(p.layout == WeightLayout::kFragments, "layout fragments (read through its index functions)",
         "layout=" + std::string(word(p.layout)));
  return r;
}

double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  return roofline_us<ExpertGemm>(p, d, 0.01, 0.005 * d.f32_flops_per_us);
}

Status enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    if (p.rows == 0) return;
    const int64_t count = p.experts * (round_up(p.features, kPanelRows) / kPanelRows);
    q.pool->run(count, even_grain(count, *q.pool), [&](int64_t begin, int64_t end, int) {
      SLUICE_SIMD(q, expert_gemm_fragments_tiles)(p, a, begin, end);
    });
  });
}

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_fragments_plain = {
    .name = "cpu.expert_gemm.fragments_plain",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<ExpertGemm>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
