// Checks of a weight format, shared by several operations.
#pragma once
#include <string>

#include "base/refusal.h"
#include "ops/weight_format.h"

namespace sluice {

inline void need_weight_format(Refusal& r, WeightFormat f, int64_t width) {
  if (!f.exists()) {
    r.need(false,
           "w in bf16 (leave scales=mx; bf16 has no scales), e2m1 (scales mx or nv) or e4m3 (scales mx, "
           "blocks or rows)",
           "w=" + text(f));
    return;
  }
  const int64_t step = f.width_step();
  if (width % step != 0)
    r.need(false,
           "width % " + std::to_string(step) + " == 0 (codes come in blocks of " + std::to_string(step) + ")",
           "width", width);
}

}  // namespace sluice
