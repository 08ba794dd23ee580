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

Status check_range(const char* name, double value, double least, double most) {
  if (value >= least && value <= most) return {};  // NaN fails
  return invalid(std::string(name) + ": wanted " + number_text(least) + " to " + number_text(most) +
                 ", found " + number_text(value));
}

Status check_sampling(const SamplingParams& s, int64_t vocab) {
  SLUICE_TRY(check_range("temperature", s.temperature, 0, kTemperatureMax));
  SLUICE_TRY(check_range("top_p", s.top_p, 0, 1));
  SLUICE_TRY(check_range("min_p", s.min_p, 0, 1));
  SLUICE_TRY(check_range("top_k", static_cast<double>(s.top_k), 0, INT32_MAX));
  SLUICE_TRY(check_range("max_tokens", static_cast<double>(s.max_tokens), 0, INT32_MAX));
  SLUICE_TRY(check_range("repetition_penalty", s.repetition_penalty, kRepetitionMin, kRepetitionMax));
  SLUICE_TRY(check_range("frequency_penalty", s.frequency_penalty, -kPenaltyMax, kPenaltyMax));
  SLUICE_TRY(check_range("presence_penalty", s.presence_penalty, -kPenaltyMax, kPenaltyMax));
  SLUICE_TRY(check_range("logprobs", static_cast<double>(s.logprobs), -1, kTopLogprobsMax));
  SLUICE_TRY(check_range("prompt_logprobs", static_cast<double>(s.prompt_logprobs), -1, kTopLogprobsMax));
  return check_bias(s.logit_bias, vocab);
}

}  // namespace sluice
