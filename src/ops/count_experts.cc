#include "ops/count_experts.h"

#include "ops/bounds.h"

namespace sluice {

Refusal CountExperts::validate(const Problem& p) {
  Refusal r;
  need_between(r, "layers", p.layers, 1, kRowsMax);
  need_between(r, "tokens", p.tokens, 0, kRowsMax);
  need_between(r, "top_k", p.top_k, 1, 32);
  need_between(r, "experts", p.experts, 1, 1024);
  return r;
}

Expectations reference(const CountExperts::Problem& p, const CountExperts::Args& a) {
  Expected counts{.slot = "counts", .value = {}, .bound = {}};
  for (int64_t l = 0; l < p.layers; ++l) {
    for (int64_t e = 0; e < p.experts; ++e) counts.value.push_back(load2(a.counts, l, e));
    for (int64_t i = 0; i < p.tokens * p.top_k; ++i) {
      const double id = load2(a.ids, l, i);
      if (id >= 0 && id < static_cast<double>(p.experts))
        counts.value[static_cast<size_t>(l * p.experts + static_cast<int64_t>(id))] += 1;
    }
  }
  return {counts};
}

}  // namespace sluice
