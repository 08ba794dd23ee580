#include "engine/request.h"

#include <algorithm>
#include <string>

#include "base/printable.h"
#include "models/family.h"

namespace sluice {
namespace {

Status check_bias(std::vector<std::pair<int32_t, float>> biases, int64_t vocab) {
  for (const auto& [id, bias] : biases) {
    if (id < 0 || id >= vocab)
      return invalid("logit_bias: wanted tokens from 0 to " + std::to_string(vocab - 1) +
                     " (the vocabulary), found " + std::to_string(id));
    const std::string name = "logit_bias of token " + std::to_string(id);
    SLUICE_TRY(check_range(name.c_str(), bias, -kLogitBiasMax, kLogitBiasMax));
  }
  const auto by_id = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::sort(biases.begin(), biases.end(), by_id);
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  const auto twice = std::adjacent_find(biases.begin(), biases.end(), same);
  if (twice == biases.end()) return {};
  return invalid("logit_bias: wanted each token once, found " + std::to_string(twice->first) + " twice");
}

}  // namespace

Status check_range(const char* name, double value, double minimum, double maximum) {
  if (value >= minimum && value <= maximum) return {};  // NaN fails
  return invalid(std::string(name) + ": wanted " + number_text(minimum) + " to " + number_text(maximum) +
                 ", found " + number_text(value));
}

SamplingParams complete(SamplingParams s, const GenerationDefaults& defaults) {
  const auto fill = [](auto* value, const auto& otherwise) {
    if (!*value) *value = otherwise;
  };
  fill(&s.temperature, defaults.temperature);
  fill(&s.top_p, defaults.top_p);
  fill(&s.min_p, defaults.min_p);
  fill(&s.top_k, defaults.top_k);
  fill(&s.seed, uint64_t{0});
  fill(&s.max_tokens, defaults.max_new_tokens);
  fill(&s.repetition_penalty, defaults.repetition_penalty);
  fill(&s.frequency_penalty, defaults.frequency_penalty);
  fill(&s.presence_penalty, defaults.presence_penalty);
  return s;
}

SamplingParams complete(SamplingParams s) { return complete(std::move(s), {}); }

Status check_sampling(const SamplingParams& s, int64_t vocab) {
  const auto check = [](const char* name, const auto& value, double minimum, double maximum) -> Status {
    return value ? check_range(name, static_cast<double>(*value), minimum, maximum) : Status{};
  };
  SLUICE_TRY(check("temperature", s.temperature, 0, kTemperatureMax));
  SLUICE_TRY(check("top_p", s.top_p, 0, 1));
  SLUICE_TRY(check("min_p", s.min_p, 0, 1));
  SLUICE_TRY(check("top_k", s.top_k, 0, INT32_MAX));
  SLUICE_TRY(check("max_tokens", s.max_tokens, 1, INT32_MAX));
  SLUICE_TRY(check("repetition_penalty", s.repetition_penalty, kRepetitionMin, kRepetitionMax));
  SLUICE_TRY(check("frequency_penalty", s.frequency_penalty, -kPenaltyMax, kPenaltyMax));
  SLUICE_TRY(check("presence_penalty", s.presence_penalty, -kPenaltyMax, kPenaltyMax));
  SLUICE_TRY(check("logprobs", s.logprobs, 0, kTopLogprobsMax));
  SLUICE_TRY(check("prompt_logprobs", s.prompt_logprobs, 0, kTopLogprobsMax));
  return check_bias(s.logit_bias, vocab);
}

}  // namespace sluice
