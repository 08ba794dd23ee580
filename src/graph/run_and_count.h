// Runs a plan and counts its kernels.
#pragma once
#include "dispatch/plan.h"
#include "graph/kernel_runs.h"

namespace sluice {

// Enqueues the plan for `tokens` tokens and counts its kernel.
template <class Op>
Status run_and_count(const PlanTable<Op>& plans, int64_t tokens, const typename Op::Args& args,
                     Workspace workspace, Stream stream, KernelRuns* runs) {
  SLUICE_TRY(plans.run(tokens, args, workspace, stream));
  runs->add(plans.at(tokens).kernel(), 1);
  return {};
}

}  // namespace sluice
