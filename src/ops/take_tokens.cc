#include "ops/take_tokens.h"

#include "ops/bounds.h"

namespace sluice {

Refusal TakeTokens::validate(const Problem& p) {
  Refusal r;
  need_between(r, "tokens", p.tokens, 0, kRowsMax);
  need_between(r, "rows", p.rows, 1, kRowsMax);
  return r;
}

Expectations reference(const TakeTokens::Problem& p, const TakeTokens::Args& a) {
  Expected y{.slot = "y", .value = {}, .bound = {}};
  for (int64_t t = 0; t < p.tokens; ++t) {
    const int64_t id = a.ids.as<int32_t>()[t], row = -1 - id;
    y.value.push_back(id >= 0 ? static_cast<double>(id) : row < p.rows ? a.drawn.as<int32_t>()[row] : -1.0);
  }
  return {y};
}

}  // namespace sluice
