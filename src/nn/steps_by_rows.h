// Keeps several plans of one graph, because the best kernels depend on how many rows a sequence can have in a
// step.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>

#include "graph/step.h"

namespace sluice {

// Stores the plan, or returns the error if planning failed.
template <class T>
Status keep_in(std::optional<T>* out, Result<T> made) {
  if (!made.ok()) return made.status();
  *out = std::move(made).value();
  return {};
}

struct StepsByRows {
  // any: up to bounds.tokens tokens of any sequences. decode: one token per sequence. verify: up to
  // verify_rows tokens per sequence. decode and verify are absent if all steps must use the same kernels.
  std::optional<Step> any, decode, verify;
  int64_t verify_rows = 0;

  // The plan to use. rows_max: upper bound of the rows of one sequence; 0: unknown.
  const Step& of(int64_t tokens, int64_t rows_max) const {
    if (decode && rows_max == 1 && tokens <= decode->tokens_max()) return *decode;
    return verify && rows_max > 0 && rows_max <= verify_rows && tokens <= verify->tokens_max() ? *verify
                                                                                               : *any;
  }
  // Estimated microseconds. verifies: some sequence has more than one token.
  double cost_us(int64_t tokens, bool verifies) const {
    return of(tokens, verifies ? std::max<int64_t>(2, verify_rows) : 1).cost_us(tokens);
  }
  size_t workspace_bytes() const {
    size_t bytes = 0;
    for (const auto* step : {&any, &decode, &verify})
      if (*step) bytes = std::max(bytes, (*step)->workspace_bytes());
    return bytes;
  }
};

}  // namespace sluice
