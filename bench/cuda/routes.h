// From logits to ordered rows: tensors, and their expected values.
#pragma once
#include <string>

#include "cuda/contest.h"
#include "cuda/memory.h"
#include "ops/fused/route_group.h"

namespace sluice::bench {

// All tensors of one run of RouteGroup; inputs are filled with random numbers.
Status make_tensors(Memory& memory, const RouteGroup::Problem& problem, RouteGroup::Args* out);

// Checks ids and weights of the first and the last rows against the reference for the logits of the same run. A baseline may
// list the experts of a token in another order, and may choose another expert if two scores are almost equal.
Result<std::string> check_routes(Device& device, const RouteTopk::Problem& problem,
                                 const RouteTopk::Args& args, Who who);

// Checks all outputs that follow from the ids of the same run against the reference.
Result<std::string> check_groups(Device& device, const GroupRows::Problem& problem,
                                 const GroupRows::Args& args);

// Compares a run's outputs with the reference; `args` are on the GPU.
template <class Op>
Result<std::string> check_all(Device& device, const typename Op::Problem& problem,
                              const typename Op::Args& args) {
  std::vector<HostTensor> kept;
  kept.reserve(32);
  typename Op::Args host;
  Status status;
  Op::slots(problem, [&](const SlotSpec& spec, Tensor Op::Args::*member) {
    if (!spec.used || !status.ok()) return;
    status = to_host(device, args.*member, &kept.emplace_back());
    host.*member = kept.back().tensor;
  });
  if (!status.ok()) return status;
  std::string wrong;
  for (const Expected& want : reference(problem, host))
    Op::slots(problem, [&](const SlotSpec& spec, Tensor Op::Args::*member) {
      if (spec.name != want.slot || !wrong.empty()) return;
      const Comparison c = compare(want, host.*member);
      if (c.wrong > 0) wrong = std::string(Op::kName) + " " + std::string(want.slot) + ": " + c.text;
    });
  return wrong;
}

// Contest::poison for run 0 with these tensors.
Status poison_routes(const RouteGroup::Problem& problem, const RouteGroup::Args& args, Stream stream);

}  // namespace sluice::bench
