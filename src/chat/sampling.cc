#include "chat/sampling.h"

#include "models/family.h"
#include "text/chat_format.h"

namespace sluice {

SamplingParams sampling_params(const SamplingParams& request, const ModelConfig& model,
                               const ChatFormat& format) {
  SamplingParams out = complete(request, model.generation);
  if (request.ignore_eos) return out;
  for (const auto& stops : {model.stop_tokens, format.stop_tokens()})
    out.stop_token_ids.insert(out.stop_token_ids.end(), stops.begin(), stops.end());
  return out;
}

}  // namespace sluice
