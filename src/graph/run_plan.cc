#include "graph/run_plan.h"

#include <algorithm>

namespace sluice {

std::string joined_kernels(const Step& step, int64_t tokens, bool with_configs) {
  std::string out;
  for (const StageKernel& piece : step.kernels(tokens)) {
    const size_t name =
        with_configs ? piece.kernel.size() : std::min(piece.kernel.find(':'), piece.kernel.size());
    out += (out.empty() ? "" : "+") + piece.kernel.substr(0, name);
  }
  return out;
}

RunDecision with_stages(Decision whole, std::string_view op, Graph graph, int64_t tokens,
                        const DeviceInfo& device, const Catalog& catalog, const Policy& policy) {
  RunDecision out{std::move(whole)};
  Decision& d = out.decision;
  const Policy own = policy_for(policy, op),
               of_stages = with_forced(policy, [&](const ForcedKernel&kernel) { return kernel.op() != op; });
  if (const Status forced = check_force(of_stages, ops_of(graph)); !forced.ok()) {
    d.contract.need(false, "policy.force to name a kernel of this operation or of its stages", policy.force);
    d.chosen = -1;
    return out;
  }
  if (!of_stages.force.empty()) {
    d.chosen = -1;
    for (Verdict& v : d.verdicts) {
      v.refusal.need(false, "policy.force to allow this kernel", "policy.force=" + policy.force);
      v.config = -1, v.configs.clear(), v.texts.clear();
    }
  }
  Verdict v{.candidate = kStageByStage};
  v.refusal.need(own.force.empty(), "policy.force to allow kernels of the stages",
                 "policy.force=" + policy.force);
  if (v.refusal.accepted()) {
    const int64_t tokens_last = std::max<int64_t>(tokens, 1);
    auto step =
        Step::plan(std::string(op), device, catalog, std::move(graph), tokens_last,
                   {.policy = of_stages, .phases = {{.first = tokens, .last = tokens_last}}, .without = op});
    if (step.ok()) {
      out.stages = std::make_shared<const Step>(std::move(step).value());
      v.cost_us = out.stages->cost_us(tokens), v.workspace_bytes = out.stages->workspace_bytes();
      v.configs.push_back({.cost_us = v.cost_us, .workspace_bytes = v.workspace_bytes});
      v.config = 0;
      for (const PieceProblem& piece : out.stages->problems(tokens)) {
        v.planned |= piece.planned;
        v.texts.push_back(piece.stage + ": " + piece.choice);
      }
    } else {
      v.refusal.need(false, "a kernel for each stage", step.status().message);
    }
  }
  if (v.config >= 0 && (d.chosen < 0 || v.cost_us < d.choice().cost_us))
    d.chosen = static_cast<int>(d.verdicts.size());
  d.verdicts.push_back(std::move(v));
  return out;
}

}  // namespace sluice
