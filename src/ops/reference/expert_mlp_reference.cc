#include <cmath>

#include "ops/fused/grouped_mlp.h"
#include "ops/reference/combine_reference.h"
#include "ops/reference/expert_mlp_reference.h"

namespace sluice {
namespace {

// Element (row, column) of a reference with `columns` columns. A value that is certainly NaN or infinite is
// kept; a value whose computation may have overflowed gets an infinite bound.
Bounded element(const Expected& of, int64_t columns, int64_t row, int64_t column) {
  const auto at = static_cast<size_t>(row * columns + column);
  const double value = of.value[at], bound = of.bound[at];
  if (std::isnan(value)) return {value, 0};
  if (std::isinf(value) && bound == 0) return {value, 0};
  if (std::isfinite(value) && std::isfinite(bound)) return {value, bound};
  return {0, kInfinity};
}

// GroupedMlp's output g.
Expected answers(const GroupedMlp::Problem& p, const GroupedMlp::Args& a, const Loop& loop) {
  const ExpertGemm::Args up = GroupedMlp::up(p, a, {});
  const Expectations h = reference_given_x(
      GroupedMlp::up(p), up,
      [&](int64_t row, int64_t k) {
        return Bounded{load2(up.x, row, k), 0};
      },
      loop);
  Expected g = reference_given_x(
                   GroupedMlp::down(p), GroupedMlp::down(a, {}),
                   [&](int64_t row, int64_t k) { return element(h[0], p.mlp.intermediate, row, k); }, loop)
                   .front();
  g.slot = "g";
  return g;
}

}  // namespace

Expectations reference(const GroupedMlp::Problem& p, const GroupedMlp::Args& a) {
  return {answers(p, a, one_by_one)};
}

Expectations reference(const ExpertMlp::Problem& p, const ExpertMlp::Args& a) {
  return reference(p, a, one_by_one);
}

Expectations reference(const ExpertMlp::Problem& p, const ExpertMlp::Args& a, const Loop& loop) {
  GroupRows::Args groups;
  std::vector<std::vector<int32_t>> lists;
  for (const Expected& list : reference(ExpertMlp::group(p), ExpertMlp::group(a, {}))) {
    std::vector<int32_t>& numbers = lists.emplace_back(list.value.begin(), list.value.end());
    GroupRows::slots(ExpertMlp::group(p), [&](const SlotSpec& spec, Tensor GroupRows::Args::*member) {
      if (spec.name == list.slot)
        groups.*member = spec.rank == 2
                             ? make_tensor(numbers.data(), spec.dtype, {spec.shape[0], spec.shape[1]})
                             : make_tensor(numbers.data(), spec.dtype, {spec.shape[0]});
    });
  }
  const Expected g = answers(GroupedMlp::of(p), GroupedMlp::of(p, a, groups, {}), loop);
  return reference_given_g(ExpertMlp::combine(p), ExpertMlp::combine(p, a, groups, {}),
                           [&](int64_t row, int64_t column) { return element(g, p.hidden, row, column); });
}

}  // namespace sluice
