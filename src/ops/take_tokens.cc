#include "ops/take_tokens.h"

#include "ops/bounds.h"

namespace sluice {

Refusal TakeTokens::validate(const Problem& p) {
  Refusal r;
  need_between(r, "tokens", p.tokens, 0, kRowsMax);
  need_between(r, "rows", p.rows, 1, kRowsMax);
  need_between(r, "map", p.map, 0, kRowsMax);
  return r;
}

Expectations reference(const TakeTokens::Problem& p, const TakeTokens::Args& a) {
  Expected y{.slot = "y", .value = {}, .bound = {}};
  const auto mapped = [&](int64_t token) -> int64_t {
    if (p.map == 0) return token;
    return token >= 0 && token < p.map ? a.token_of.as<int32_t>()[token] : -1;
  };
  for (int64_t t = 0; t < p.tokens; ++t) {
    const int64_t id = a.ids.as<int32_t>()[t], row = -1 - id;
    const int64_t token = id >= 0 ? id : row < p.rows ? mapped(a.sampled.as<int32_t>()[row]) : -1;
    y.value.push_back(static_cast<double>(token));
  }
  return {y};
}

}  // namespace sluice
