#include "ops/norm_qkv_rope_kv_write.h"

#include <cmath>
#include <vector>

#include "ops/linear_reference.h"
#include "ops/norm_factor_reference.h"
#include "ops/qkv_rope_kv_write_reference.h"

namespace sluice {

Refusal NormQkvRopeKvWrite::validate(const Problem& p) {
  Refusal r = QkvRopeKvWrite::validate(p.qkv);
  r.append(RmsNorm::validate(norm(p)));
  return r;
}

// The norm in f32, which is exact enough: the bound is for a norm in bf16.
Expectations reference(const NormQkvRopeKvWrite::Problem& p, const NormQkvRopeKvWrite::Args& a) {
  const RmsNorm::Problem norm = NormQkvRopeKvWrite::norm(p);
  const RmsNorm::Args of_x = NormQkvRopeKvWrite::norm(a, {});
  const Expectations exact = reference(norm, of_x);
  std::vector<float> rows;
  for (const double v : exact.front().value) rows.push_back(static_cast<float>(v));
  const Tensor normed = make_tensor(rows.data(), DType::kF32, {norm.tokens, norm.hidden}, Backend::kCpu);
  const QkvRopeKvWrite::Args behind = NormQkvRopeKvWrite::qkv(a, normed);
  const Linear::Problem linear = QkvRopeKvWrite::project(p.qkv);
  const Linear::Args project = QkvRopeKvWrite::project(behind);
  Expected y = reference(linear, project).front();

  const double share = 0x1p-8 + (0.5 * static_cast<double>(norm.hidden) + 12) * kF32Eps;
  std::vector<NormFactor> factors;
  for (int64_t t = 0; t < norm.tokens; ++t) factors.emplace_back(norm, of_x, normed, t, share);
  std::vector<double> w(static_cast<size_t>(linear.width));
  for (int64_t n = 0; n < linear.features; ++n) {
    for (int64_t k = 0; k < linear.width; ++k)
      w[static_cast<size_t>(k)] = std::abs(weight_of(linear, project, n, k));
    for (int64_t t = 0; t < norm.tokens; ++t) {
      const auto at = static_cast<size_t>(t * linear.features + n);
      y.bound[at] = widened(linear.y, y.value[at], y.bound[at], factors[static_cast<size_t>(t)].more(w));
    }
  }
  return turned_and_written(p.qkv, behind, y);
}

}  // namespace sluice
