#include "chat/sampling.h"

#include "engine/request.h"
#include "models/family.h"
#include "text/chat_format.h"

namespace sluice {

SamplingParams sampling_params(const RequestSampling& r, const ModelConfig& model, const ChatFormat& format) {
  const GenerationDefaults& d = model.generation;
  SamplingParams out{.temperature = r.temperature.value_or(d.temperature),
                     .top_p = r.top_p.value_or(d.top_p),
                     .min_p = r.min_p.value_or(d.min_p),
                     .top_k = r.top_k.value_or(d.top_k),
                     .seed = r.seed.value_or(0),
                     .max_tokens = r.max_tokens.value_or(d.max_new_tokens),
                     .repetition_penalty = r.repetition_penalty.value_or(d.repetition_penalty),
                     .frequency_penalty = r.frequency_penalty.value_or(d.frequency_penalty),
                     .presence_penalty = r.presence_penalty.value_or(d.presence_penalty),
                     .logprobs = r.logprobs.value_or(-1)};
  out.logit_bias = r.logit_bias;
  if (!r.ignore_eos) {
    out.stop_token_ids = model.stop_tokens;
    for (const int32_t id : format.stop_tokens()) out.stop_token_ids.push_back(id);
  }
  out.stop_token_ids.insert(out.stop_token_ids.end(), r.stop_token_ids.begin(), r.stop_token_ids.end());
  return out;
}

}  // namespace sluice
