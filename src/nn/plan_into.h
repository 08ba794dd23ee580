// For blocks that own several tables.
#pragma once
#include <optional>
#include <utility>

#include "dispatch/plan.h"

namespace sluice {

template <class Op>
Status plan_into(std::optional<PlanTable<Op>>* out, Device& device, const typename Op::Problem& problem,
                 int64_t tokens_max, const Policy& policy) {
  Result<PlanTable<Op>> made = PlanTable<Op>::make(device, problem, tokens_max, policy);
  if (!made.ok()) return made.status();
  *out = std::move(made).value();
  return {};
}

}  // namespace sluice
