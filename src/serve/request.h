// What a caller asks of the engine, and what comes back.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace sluice {

// Names and defaults are vLLM's; ops/sample.h says what each does.
struct SamplingParams {
  double temperature = 1;  // 0: greedy
  double top_p = 1, min_p = 0;
  int64_t top_k = 0;  // 0: all
  uint64_t seed = 0;
  int64_t max_tokens = 0;  // 0: until the context is full
  std::vector<int32_t> stop_token_ids = {};
};

struct Request {
  std::vector<int32_t> prompt = {};  // at least one token
  SamplingParams sampling = {};
};

enum class FinishReason : uint8_t {
  kNone,    // more will come
  kStop,    // the token is one of stop_token_ids
  kLength,  // max_tokens, or the context is full
  kAbort,   // the caller cancelled it
};
constexpr std::string_view text(FinishReason reason) {
  constexpr std::string_view kWords[] = {"none", "stop", "length", "abort"};
  return kWords[static_cast<size_t>(reason)];
}

struct GeneratedToken {
  int64_t request = 0;  // as add() numbered it
  int32_t id = 0;
  float logprob = 0;  // natural logarithm, of the unmodified distribution
  FinishReason finish = FinishReason::kNone;
};

}  // namespace sluice
