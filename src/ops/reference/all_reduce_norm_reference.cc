#include <algorithm>
#include <cmath>

#include "ops/all_reduce_norm.h"
#include "ops/rms_norm.h"

namespace sluice {
namespace {

// The largest finite bf16: above it f32 or bf16 arithmetic may round to infinity.
constexpr double kStreamOverflow = 0x1.fep127;

}  // namespace

Expectations reference_of_ranks(const AllReduceNorm::Problem& p, std::span<const AllReduceNorm::Args> ranks) {
  Expected stream{.slot = "stream", .value = {}, .bound = {}};
  for (int64_t t = 0; t < p.tokens; ++t)
    for (int64_t i = 0; i < p.hidden; ++i) {
      double sum = 0, magnitude = 0;
      const auto add = [&](double value) { sum += value, magnitude += std::abs(value); };
      for (const AllReduceNorm::Args& a : ranks) add(load2(a.x, t, i));
      if (p.residual) add(load2(ranks.front().stream, t, i));
      const auto terms = static_cast<double>(p.ranks + 1);
      double bound = terms * (kF32Eps * magnitude + 2 * kFlush);
      bound += half_ulp(p.x, std::abs(sum) + bound);
      if (!std::isfinite(sum)) bound = 0;
      if (std::isfinite(magnitude) && magnitude > kStreamOverflow) bound = kInfinity;
      stream.value.push_back(sum);
      stream.bound.push_back(bound);
    }
  return {stream};
}

Expectations reference(const AllReduceNorm::Problem& p, const AllReduceNorm::Args& a) {
  Expectations out = reference_of_ranks(p, {&a, 1});
  if (p.ranks > 1) std::ranges::fill(out[0].bound, kInfinity);
  return out;
}

Expectations reference_given(const AllReduceNorm::Problem& p, const AllReduceNorm::Args& a) {
  if (!p.norm) return {};
  return reference(
      RmsNorm::Problem{.tokens = p.tokens, .hidden = p.hidden, .eps = p.eps, .x = p.x, .w = p.w, .y = p.x},
      RmsNorm::Args{.x = a.stream, .weight = a.weight, .residual = {}, .y = a.y});
}

}  // namespace sluice
