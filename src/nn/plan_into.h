// Makes a plan table and stores it in a member. A class may pass one policy for several tables: each table
// applies only the forced kernels of its own operation.
#pragma once
#include <optional>
#include <utility>

#include "dispatch/plan.h"

namespace sluice {

template <class Op>
Status plan_into(std::optional<PlanTable<Op>>* out, Device& device, const typename Op::Problem& problem,
                 int64_t tokens_max, const Policy& policy) {
  const auto table = device.catalog().table<Op>();
  Result<PlanTable<Op>> made =
      PlanTable<Op>::make(device.info(), table, problem, tokens_max, policy_for(policy, Op::kName));
  if (!made.ok()) return made.status();
  *out = std::move(made).value();
  return {};
}

}  // namespace sluice
