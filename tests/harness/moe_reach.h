// Error bounds of a correct MoE layer.
#pragma once
#include <algorithm>
#include <vector>

#include "harness/moe_files.h"
#include "nn/moe/layer.h"

namespace sluice::test {

inline double value_of(const RandomMatrix& m, int64_t row, int64_t k) {
  if (!m.fp4) {
    BF16 v;
    std::memcpy(&v, &m.w[static_cast<size_t>(2 * (row * m.width + k))], 2);
    return to_float(v);
  }
  const int64_t flat = row * m.width + k;
  const int code = m.w[static_cast<size_t>(flat / 2)] >> (flat % 2 * 4) & 15;
  return kE2M1Values[code] * e8m0_value(m.scales[static_cast<size_t>(flat / 32)]);
}

// The largest error of any correct layer, and the largest magnitude of its output, per token and column.
struct Reach {
  double error = 0, magnitude = 0;
};

// Bounds of one expert with outputs of type `g`, for every token and column. W13's bound (ops/expert_gemm.h)
// propagates through W2; W2's own sum adds an error of at most (width + 5) eps of its magnitude; then the
// result is rounded.
inline std::vector<Reach> reach_of(const MoeConfig& c, ExpertGemm::Problem p, RandomMatrix up,
                                   const RandomMatrix& down, const Tensor& x, const uint16_t* up_bias,
                                   const uint16_t* down_bias, DType g) {
  const int64_t tokens = x.shape[0];
  p.rows = tokens, p.tokens = 0, p.slots = 0, p.experts = 1, p.layout = WeightLayout::kRowMajor;
  const auto rows = static_cast<int32_t>(tokens);
  int32_t begin[2] = {0, rows}, count[1] = {rows};
  ExpertGemm::Args args{.x = x,
                        .w = make_tensor(up.w.data(), p.w, {1, up.rows, up.width}),
                        .w_scale = {},
                        .bias = {},
                        .act_params = {},
                        .row_begin = make_tensor(begin, DType::kI32, {2}),
                        .row_count = make_tensor(count, DType::kI32, {1}),
                        .order = {},
                        .weights = {},
                        .y = {}};
  if (up.fp4) args.w_scale = make_tensor(up.scales.data(), DType::kU8, {1, up.rows, up.width / 32});
  if (p.bias) args.bias = make_tensor(const_cast<uint16_t*>(up_bias), DType::kBF16, {1, up.rows});
  const Expected h = reference(p, args)[0];
  std::vector<Reach> out;
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < c.hidden; ++i) {
      Reach r;
      if (down_bias) r.magnitude = std::abs(to_float(BF16{down_bias[i]}));
      for (int64_t j = 0; j < down.width; ++j) {
        const auto at = static_cast<size_t>(t * down.width + j);
        const double w = std::abs(value_of(down, i, j));
        r.error += w * h.bound[at];
        r.magnitude += w * (std::abs(h.value[at]) + h.bound[at]);
      }
      r.error += static_cast<double>(down.width + 5) * kF32Eps * r.magnitude;
      r.error += half_ulp(g, r.magnitude + r.error);
      out.push_back(r);
    }
  return out;
}

// Bounds of the layer: router weights add up to at most `scale`, so a sum over experts is no worse than the
// worst expert.
inline std::vector<Reach> reach_of(const RandomMoe& m, const Tensor& x) {
  const MoeConfig& c = m.config;
  const ExpertProblems p = expert_problems(c);
  const bool gated = is_gated(c.act);
  std::vector<Reach> out(static_cast<size_t>(x.shape[0] * c.hidden));
  for (size_t e = 0; e < m.up.size(); ++e) {
    const RandomMatrix up =
        RandomMoe::joined(gated ? m.gate[e] : m.up[e], gated ? &m.up[e] : nullptr, c.gate_order);
    const auto one = reach_of(
        c, p.up, up, m.down[e], x, m.up_bias.data() + (c.up_bias ? static_cast<int64_t>(e) * up.rows : 0),
        c.down_bias ? m.down_bias.data() + static_cast<int64_t>(e) * c.hidden : nullptr, c.g);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i].error = std::max(out[i].error, c.scale * one[i].error);
      out[i].magnitude = std::max(out[i].magnitude, c.scale * one[i].magnitude);
    }
  }
  if (c.shared_intermediate) {
    const RandomMatrix up =
        RandomMoe::joined(gated ? m.shared_gate : m.shared_up, gated ? &m.shared_up : nullptr, c.gate_order);
    const DType y = c.shared_as_slots ? c.g : c.x;
    const auto shared = reach_of(c, p.shared_up, up, m.shared_down, x, nullptr, nullptr, y);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i].error += shared[i].error, out[i].magnitude += shared[i].magnitude;
      // Slots are rounded separately: the half ulps of the parts add up to at most twice the sum's half ulp.
      if (c.shared_as_slots) out[i].error += half_ulp(y, shared[i].magnitude + shared[i].error);
    }
  }
  // Combining rounds slots + 6 times, and then y once.
  const int64_t slots = c.top_k + shared_slots(c);
  for (Reach& r : out) r.error += static_cast<double>(slots + 7) * kF32Eps * r.magnitude;
  return out;
}

}  // namespace sluice::test
