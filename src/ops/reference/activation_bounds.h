// The check of an activation's parameters, for the validate() functions of expert products.
#pragma once
#include <string>

#include "ops/activation.h"
#include "ops/bounds.h"

namespace sluice {

// per_expert: each expert has its own parameters, in a tensor.
inline void need_activation(Refusal& r, Activation act, const ActivationParams& params, bool per_expert) {
  need_moderate(r, "alpha", params.alpha);
  need_moderate(r, "beta", params.beta);
  const bool has_limit = act == Activation::kSwiGluClamped || act == Activation::kSwiGluStep;
  if (has_limit && !per_expert)
    need_real(r, "limit", "above 0 (infinity is no limit)", params.limit > 0, params.limit);
  r.need(!per_expert || has_limit, "an activation with parameters for per_expert",
         std::string("act=") + std::string(word(act)));
}

}  // namespace sluice
