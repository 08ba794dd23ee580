#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/expert_gemm.h"
#include "ops/reference/expert_gemm_reference.h"

namespace sluice {
namespace {

constexpr double kExpertF32Max = std::numeric_limits<float>::max();

// One row of one expert's weights, decoded once and used for all rows of x.
struct WeightRow {
  std::vector<double> w;      // [width]
  std::vector<double> codes;  // scaled by set_codes()
  double largest_scale = 0;   // ignores NaN scales
};

int64_t source_row(const ExpertGemm::Problem& p, int64_t e, int64_t i, bool up) {
  const int64_t row = is_gated(p.act) ? gated_row(p.gate_order, p.features, i, up) : i;
  return e * ExpertGemm::weight_rows(p) + row;
}

// A weight is its code times `value`. A kernel may keep its sums in multiples of `unit`.
struct Scale {
  double value = 1, unit = 1;
};

// The scale in panels16 or fragments; NaN where ops/expert_gemm.h says so.
Scale packed_scale(const ExpertGemm::Problem& p, const uint8_t* scales, int64_t i, bool up, int64_t k) {
  const WeightFormat f = ExpertGemm::format(p);
  if (p.layout == WeightLayout::kPanels16) {
    const PanelShape s = ExpertGemm::panels(p);
    const PanelRow at = panel_row(is_gated(p.act), i, up);
    const double row = f.has_row_scale() ? load_f32_bytes(scales + panel_row_scale_index(s, f, at)) : 1.0;
    if (f.columns() == 0) return {row, row};
    const uint8_t* one = scales + panel_scale_index(s, f, at, k);
    if (f.scales == WeightScales::kNv) return {to_float(E4M3{*one}) * row, 128 * row};
    const double scale = f.scales == WeightScales::kMx ? e8m0_value(*one) : load_f32_bytes(one);
    return {scale, scale};
  }
  const FragmentShape s = ExpertGemm::fragments(p);
  const FragmentRow at = fragment_row(is_gated(p.act), i, up);
  if (f.scales == WeightScales::kMx) {
    const uint8_t stored = scales[fragment_scale_index(s, at, k)], top = scales[fragment_top_index(s, at)];
    const double scale =
        stored == kFragmentNan ? e8m0_value(255) : std::ldexp(1.0, fragment_scale(stored, top) - 127);
    return {scale, scale};
  }
  const double factor = load_f32_bytes(scales + fragment_factor_index(s, f, at));
  if (f.scales == WeightScales::kRows) return {factor, factor};
  if (f.scales == WeightScales::kNv) {
    const double scale = to_float(E4M3{fragment_nv_scale(scales[fragment_nv_index(s, at, k)])});
    return {scale * factor / 128, factor};
  }
  const double scale = load_f32_bytes(scales + 4 * fragment_block_scale_index(s, at, k)) * factor;
  return {scale, scale};
}

Scale weight_scale(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, int64_t e, int64_t i, bool up,
                   int64_t k) {
  const WeightFormat f = ExpertGemm::format(p);
  if (!f.scaled()) return {};
  const uint8_t* scales = a.w_scale.as<const uint8_t>();
  if (p.layout != WeightLayout::kRowMajor)
    return packed_scale(p, scales + e * ExpertGemm::packed_scale_bytes(p), i, up, k);
  scales += source_row(p, e, i, up) * f.row_scale_bytes(p.width);
  const double scale = weight_scale_at(f, scales, p.width, k);
  return {scale, f.scales == WeightScales::kNv ? 128.0 * load_f32_bytes(scales + p.width / kNvBlock) : scale};
}

double weight_code(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, int64_t e, int64_t i, bool up,
                   int64_t k) {
  if (p.layout == WeightLayout::kRowMajor) return load(a.w, source_row(p, e, i, up) * p.width + k);
  const uint8_t* bytes = a.w.as<const uint8_t>() + e * ExpertGemm::packed_bytes(p);
  if (p.layout == WeightLayout::kFragments) {
    const FragmentShape s = ExpertGemm::fragments(p);
    const FragmentRow at = fragment_row(is_gated(p.act), i, up);
    if (p.w == DType::kBF16)
      return to_float(reinterpret_cast<const BF16*>(bytes)[fragment_bf16_index(s, at, k)]);
    if (p.w == DType::kE4M3) return to_float(E4M3{bytes[fragment_code8_index(s, at, k)]});
    const FragmentCode c = fragment_code(s, at, k);
    const uint32_t word = reinterpret_cast<const uint32_t*>(bytes)[c.word];
    return kE2M1Values[fragment_code_of(fragment_pair(word, c.pair), c.half)];
  }
  const PanelShape s = ExpertGemm::panels(p);
  const PanelRow at = panel_row(is_gated(p.act), i, up);
  if (p.w == DType::kBF16) return to_float(reinterpret_cast<const BF16*>(bytes)[panel_bf16_index(s, at, k)]);
  if (p.w == DType::kE4M3) return to_float(E4M3{bytes[panel_e4m3_index(s, at, k)]});
  const NibbleAt n = panel_mxfp4_nibble(s, at, k);
  return kE2M1Values[bytes[n.byte] >> n.shift & 15];
}

// Sets row->codes to the values that a kernel may sum before it applies the scale: the codes times the largest factor that the
// layout applies before the sum. For block scales they are the weights divided by the row's smallest scale.
void set_codes(const ExpertGemm::Problem& p, double smallest, WeightRow* row) {
  const WeightFormat f = ExpertGemm::format(p);
  const bool fragments = p.layout == WeightLayout::kFragments;
  for (size_t k = 0; k < row->codes.size(); ++k) {
    double& code = row->codes[k];
    if (f.scaled() && f.scales == WeightScales::kBlocks) {
      code = smallest > 0 ? row->w[k] / smallest : 0;
    } else if (fragments && f.is(DType::kE4M3, WeightScales::kMx)) {
      code *= 128;
    } else if (fragments && f.is(DType::kE2M1, WeightScales::kMx)) {
      code *= 2;
    } else if (f.scales == WeightScales::kNv) {
      code *= 448;
    }
  }
}

WeightRow decode(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, int64_t e, int64_t i, bool up) {
  WeightRow row;
  row.w.reserve(static_cast<size_t>(p.width));
  row.codes.reserve(static_cast<size_t>(p.width));
  Scale scale;
  double smallest = 0;
  for (int64_t k = 0; k < p.width; ++k) {
    if (k % kNvBlock == 0) {  // kNvBlock divides every format's columns per scale
      scale = weight_scale(p, a, e, i, up, k);
      const double unit = std::abs(scale.unit);
      if (unit > row.largest_scale) row.largest_scale = unit;
      if (unit > 0 && (smallest == 0 || unit < smallest)) smallest = unit;
    }
    const double code = weight_code(p, a, e, i, up, k);
    row.codes.push_back(code);
    row.w.push_back(code * scale.value);
  }
  set_codes(p, smallest, &row);
  return row;
}

// The loss of one term if numbers below the smallest normal are flushed to zero. The whole term is lost if x or the weight
// may be subnormal. The weight also counts as lost if it is small relative to the row's largest scale, because kernels may sum
// in units of that scale. The product and one partial sum may be lost as well, in the units of the sum.
double flushed_by_term(Bounded x, double w, double largest_scale) {
  // 6, the largest e2m1 code, times 2^-127; multiplied below by the row's largest scale
  constexpr double kLostCode = 6 * 0x1p-127;
  const double reach = std::abs(x.value) + x.bound;
  const bool lost = std::abs(w) < kFlush || std::abs(w) <= kLostCode * largest_scale;
  const double x_lost = std::abs(x.value) - x.bound < kFlush ? std::min(reach, kFlush) : 0;
  return (lost ? reach : x_lost) * std::abs(w) + 2 * kFlush * std::max(1.0, largest_scale);
}

// The row of x that fp8_x permits in place of `x`: the bounds grow by the error of rounding each value to e4m3. A value that is
// itself known only within a bound may round to either side, so it gets the largest error of its binade.
std::vector<Bounded> rounded_to_fp8(const std::vector<Bounded>& x) {
  double largest = 1e-10;
  for (const Bounded& v : x)
    if (const double reach = std::abs(v.value) + v.bound; !(reach <= largest)) largest = reach;
  const double scale = largest / kE4M3Max;
  std::vector<Bounded> out = x;
  for (Bounded& v : out) {
    if (std::isnan(v.value)) continue;
    if (!std::isfinite(scale)) {
      v.bound = kInfinity;
      continue;
    }
    const double rounded = to_float(to_e4m3(static_cast<float>(v.value / scale))) * scale;
    const double reach = std::abs(v.value) + v.bound,
                 slack = 0x1p-21 * reach;  // of the f32 scale and product
    constexpr double kHalfStep = 0x1p-10;  // half of e4m3's smallest step
    v.bound += slack + (v.bound == 0 ? std::abs(v.value - rounded) : std::max(reach / 16, kHalfStep * scale));
  }
  return out;
}

// What the tensor cores' short sums may lose of a sum of FP8 products, without `in` (Exactness of ops/expert_gemm.h).
double lost_by_fp8_sums(const std::vector<Bounded>& x, const WeightRow& row) {
  constexpr double kOfSum = 0x1p-12, kWeightMin = 0x1p-26;
  constexpr size_t kColumns = 32;
  double sum = 0, lost = 0, own = 0;
  for (size_t k = 0; k < row.w.size(); ++k) {
    const double reach = (std::abs(x[k].value) + x[k].bound) * std::abs(row.w[k]);
    if (!std::isfinite(reach)) continue;
    sum += x[k].value * row.w[k], own += reach;
    if (std::abs(row.w[k]) <= kWeightMin * row.largest_scale) lost += reach;
    if (k % kColumns + 1 < kColumns && k + 1 < row.w.size()) continue;
    lost += kOfSum * (std::abs(sum) + own), own = 0;
  }
  return lost;
}

// z of ops/expert_gemm.h, with its bound. If the formula in f32 may exceed the largest float, before or after
// applying the scales, the bound is infinite.
Bounded pre_activation(const ExpertGemm::Problem& p, const std::vector<Bounded>& x, const WeightRow& row,
                       double in, double bias) {
  double sum = 0, magnitude = 0, unscaled = 0, flushed = 0, brought = 0;
  for (size_t k = 0; k < row.w.size(); ++k) {
    const double term = x[k].value * row.w[k];
    sum += term;
    if (!std::isfinite(term)) continue;  // then the sum is not finite either, and rounding cannot change it
    const double reach = std::abs(x[k].value) + x[k].bound;
    magnitude += reach * std::abs(row.w[k]);
    unscaled += reach * std::abs(row.codes[k]);
    brought += x[k].bound * std::abs(row.w[k]);
    flushed += flushed_by_term(x[k], row.w[k], row.largest_scale);
  }
  const WeightFormat f = ExpertGemm::format(p);
  const int64_t of_scales = !f.scaled()                         ? 0
                            : f.scales == WeightScales::kBlocks ? 3 * f.column_scales(p.width)
                            : f.scales == WeightScales::kNv     ? 2
                                                                : 0;
  const double terms = static_cast<double>(p.width + of_scales);
  const double scaled = std::max(1.0, std::abs(in)) * std::max(magnitude, unscaled);
  Bounded z{in * sum + bias, (terms + 5) * kF32Eps * (std::abs(in) * magnitude + std::abs(bias)) +
                                 (std::abs(in) + 1) * flushed + std::abs(in) * brought};
  if (p.fp8_x) z.bound += std::abs(in) * lost_by_fp8_sums(x, row);
  if (!(scaled + std::abs(bias) <= kExpertF32Max)) z.bound = kInfinity;
  return z;
}

ActivationParams params_of(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, int64_t e) {
  if (!p.per_expert) return {p.alpha, p.beta, p.limit};
  return {load(a.act_params, 3 * e), load(a.act_params, 3 * e + 1), load(a.act_params, 3 * e + 2)};
}

}  // namespace

double rounding_error(DType y, Bounded v) {
  if (std::isinf(v.value)) return 0;
  const double reach = std::abs(v.value) + v.bound;
  const double largest = y == DType::kBF16 ? 0x1.FEp127 : kExpertF32Max;
  return reach <= largest ? half_ulp(y, reach) : kInfinity;
}

void one_by_one(int64_t count, const std::function<void(int64_t)>& f) {
  for (int64_t i = 0; i < count; ++i) f(i);
}

Expectations reference_given_x(const ExpertGemm::Problem& p, const ExpertGemm::Args& a,
                               const std::function<Bounded(int64_t row, int64_t k)>& x_at, const Loop& loop) {
  const auto size = static_cast<size_t>(p.rows * p.features);
  Expected y{.slot = "y", .value = std::vector<double>(size), .bound = std::vector<double>(size)};
  y.untouched.assign(size, 1);
  for (int64_t e = 0; e < p.experts; ++e) {
    const int64_t begin = a.row_begin.as<const int32_t>()[e], count = a.row_count.as<const int32_t>()[e];
    if (count == 0) continue;
    std::vector<std::vector<Bounded>> x;
    for (int64_t r = begin; r < begin + count; ++r) {
      const int64_t row = p.slots > 0 ? a.order.as<const int32_t>()[r] / p.slots : r;
      std::vector<Bounded>& values = x.emplace_back();
      for (int64_t k = 0; k < p.width; ++k) values.push_back(x_at(row, k));
      if (p.fp8_x) values = rounded_to_fp8(values);
    }
    const ActivationParams params = params_of(p, a, e);
    loop(p.features, [&](int64_t i) {
      const auto bias = [&](bool up) {
        const int64_t row = is_gated(p.act) ? gated_row(p.gate_order, p.features, i, up) : i;
        return p.bias ? load(a.bias, e * ExpertGemm::weight_rows(p) + row) : 0.0;
      };
      const WeightRow gate = decode(p, a, e, i, false);
      const WeightRow up = is_gated(p.act) ? decode(p, a, e, i, true) : WeightRow{};
      for (int64_t r = begin; r < begin + count; ++r) {
        const double in = p.weighted ? a.weights.as<const float>()[a.order.as<const int32_t>()[r]] : 1.0;
        const std::vector<Bounded>& row = x[static_cast<size_t>(r - begin)];
        const Bounded g = pre_activation(p, row, gate, in, bias(false));
        const Bounded u = is_gated(p.act) ? pre_activation(p, row, up, in, bias(true)) : Bounded{};
        const Bounded out = activate(p.act, params, g, u);
        const auto at = static_cast<size_t>(r * p.features + i);
        y.value[at] = out.value;
        y.bound[at] = out.bound + rounding_error(p.y, out);
        y.untouched[at] = 0;
      }
    });
  }
  return {y};
}

Expectations reference(const ExpertGemm::Problem& p, const ExpertGemm::Args& a) {
  return reference_given_x(p, a, [&](int64_t row, int64_t k) { return Bounded{load2(a.x, row, k), 0}; });
}

}  // namespace sluice
