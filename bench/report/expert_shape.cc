#include "report/expert_shape.h"

#include <cstdio>

namespace sluice::bench {

std::string expert_shape_name(const ExpertMlp::Problem& p) {
  const int64_t routed = p.experts_routed > 0 ? p.experts_routed : p.experts;
  return std::string(text(p.w)) + "-" + std::to_string(p.hidden) + "x" + std::to_string(p.intermediate) +
         "-" + std::to_string(p.experts) + "of" + std::to_string(routed) + "k" + std::to_string(p.slots) +
         "-" + std::string(word(p.act));
}

Result<ExpertMlp::Problem> expert_shape(const std::string& name) {
  ExpertMlp::Problem p{.tokens = 0, .layout = WeightLayout::kFragments};
  char w[8] = {}, act[24] = {};
  long long hidden = 0, intermediate = 0, experts = 0, routed = 0, slots = 0;
  if (std::sscanf(name.c_str(), "%7[a-z0-9]-%lldx%lld-%lldof%lldk%lld-%23s", w, &hidden, &intermediate,
                  &experts, &routed, &slots, act) != 7)
    return invalid("wanted a shape such as e2m1-2880x2880-128of128k4-swiglu_clamped, found '" + name + "'");
  p.hidden = hidden, p.intermediate = intermediate, p.experts = experts, p.experts_routed = routed,
  p.slots = slots;
  SLUICE_TRY(set_field(p, "w", w));
  SLUICE_TRY(set_field(p, "act", act));
  if (p.act == Activation::kSwiGluClamped || p.act == Activation::kSwiGluStep) p.limit = 7;
  return p;
}

}  // namespace sluice::bench
