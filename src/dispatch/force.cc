#include "dispatch/force.h"

#include <algorithm>

namespace sluice {

std::string_view ForcedKernel::op() const {
  const size_t first = name.find('.');
  if (first == std::string_view::npos) return {};
  const size_t second = name.find('.', first + 1);
  return second == std::string_view::npos ? std::string_view() : name.substr(first + 1, second - first - 1);
}

std::vector<ForcedKernel> forced_kernels(std::string_view force) {
  std::vector<ForcedKernel> out;
  while (!force.empty()) {
    const size_t end = std::min(force.find(','), force.size());
    const std::string_view kernel = force.substr(0, end);
    const size_t colon = std::min(kernel.find(':'), kernel.size());
    if (!kernel.empty())
      out.push_back({kernel.substr(0, colon), kernel.substr(std::min(colon + 1, kernel.size()))});
    force.remove_prefix(std::min(end + 1, force.size()));
  }
  return out;
}

Force force_of(std::string_view force, const std::vector<std::string_view>& names) {
  Force out;
  const std::vector<ForcedKernel> kernels = forced_kernels(force);
  out.refusal.need(force.empty() || !kernels.empty(), "policy.force to name a kernel", force);
  for (const ForcedKernel& kernel : kernels) {
    const bool own = std::find(names.begin(), names.end(), kernel.name) != names.end();
    out.refusal.need(own, "policy.force to name a kernel of this operation",
                     kernel.name.empty() ? force : kernel.name);
    out.refusal.need(!own || !out.own, "policy.force to name only one kernel of an operation", force);
    if (own) out.own = kernel;
  }
  return out;
}

Status check_force(const Policy& policy, const std::vector<std::string_view>& ops) {
  for (const ForcedKernel& kernel : forced_kernels(policy.force)) {
    if (std::find(ops.begin(), ops.end(), kernel.op()) != ops.end()) continue;
    std::string known;
    for (size_t i = 0; i < ops.size(); ++i)
      if (std::find(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(i), ops[i]) ==
          ops.begin() + static_cast<std::ptrdiff_t>(i))
        known += (known.empty() ? "" : ", ") + std::string(ops[i]);
    return invalid("policy.force: wanted a kernel of one of the operations " + known + ", found '" +
                   std::string(kernel.name) + "'");
  }
  return {};
}

}  // namespace sluice
