// Resolves the kernel names of MoeBackend, and looks for kernels that round to FP8.
#include <algorithm>

#include "nn/moe/layer.h"

namespace sluice {
namespace {

// Finds an expert kernel by its name or the last part of its name. Returns the name in the form that
// Policy::force expects.
Result<std::string> kernel_named(const std::string& what, const DeviceInfo& device, const Catalog& catalog) {
  if (what.empty() || what == "auto") return std::string();
  const std::vector<ForcedKernel> asked = forced_kernels(what);
  if (asked.size() != 1) return invalid("moe backend: wanted one kernel, found '" + what + "'");
  std::vector<std::string> known, found, accepted;
  const auto look = [&]<class Op>(std::type_identity<Op>) {
    for (const Candidate<Op>* c : catalog.table<Op>()) {
      if (c->backend != device.backend) continue;
      known.emplace_back(c->name);
      accepted.insert(accepted.end(), {known.back(), std::string(variant_of(c->name))});
      if (c->name == asked[0].name || variant_of(c->name) == asked[0].name) found.emplace_back(c->name);
    }
  };
  look(std::type_identity<ExpertGemm>{});
  look(std::type_identity<GroupedMlp>{});
  look(std::type_identity<ExpertMlp>{});
  if (found.size() == 1)
    return found[0] + (asked[0].config.empty() ? "" : ":" + std::string(asked[0].config));
  std::string names;
  for (const std::string& name : found.empty() ? known : found) names += (names.empty() ? "" : ", ") + name;
  const std::string near = found.empty() ? nearest(asked[0].name, accepted) : "";
  return invalid("moe backend: wanted " + std::string(found.empty() ? "auto or one of " : "one of ") + names +
                 ", found '" + what + "'" + (near.empty() ? "" : "; did you mean '" + near + "'?"));
}

}  // namespace

Result<std::vector<StepPhase>> phases_of(const MoeBackend& backend, const DeviceInfo& device,
                                         const Catalog& catalog, int64_t tokens_max, const Policy& policy) {
  if (backend.decode_tokens < 0)
    return invalid("moe backend: decode_tokens: wanted 0 or more, found " +
                   std::to_string(backend.decode_tokens));
  auto decode = kernel_named(backend.decode, device, catalog);
  if (!decode.ok()) return decode.status();
  auto prefill = kernel_named(backend.prefill, device, catalog);
  if (!prefill.ok()) return prefill.status();
  if (decode.value() == prefill.value() || backend.decode_tokens >= tokens_max)
    return std::vector<StepPhase>{{0, tokens_max, decode.value()}};
  if (policy.batch_invariant)
    return invalid(
        "moe backend: wanted one kernel for decode and prefill, because batch_invariant is set, found "
        "'" +
        decode.value() + "' and '" + prefill.value() + "'");
  return std::vector<StepPhase>{{0, backend.decode_tokens, decode.value()},
                                {backend.decode_tokens + 1, tokens_max, prefill.value()}};
}

Status check_fp8_activations(const MoeConfig& config, const DeviceInfo& device, const Catalog& catalog) {
  if (!config.fp8_activations) return {};
  ExpertGemm::Problem rounded = expert_problems(config).up;
  rounded.layout = layout_for(device.backend);
  ExpertGemm::Problem exact = rounded;
  exact.fp8_x = false;
  for (const Candidate<ExpertGemm>* c : catalog.table<ExpertGemm>())
    if (c->backend == device.backend && c->supports(rounded, device).accepted() &&
        !c->supports(exact, device).accepted())
      return {};
  return invalid(
      "wanted activations in bf16, experts in e2m1 (scales mx) or e4m3 (scales rows or blocks), "
      "and a GPU with tensor cores for FP8, found activations in " +
      std::string(text(config.x)) + ", experts in " + text(ExpertGemm::format(rounded)) + " and the device " +
      device.name);
}

}  // namespace sluice
