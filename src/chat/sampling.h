// The sampling of an answer with the defaults of its model and chat format.
#pragma once
#include "engine/request.h"

namespace sluice {

class ChatFormat;
struct ModelConfig;

// `request` with the model's defaults (generation_config.json) for absent values, and with the model's and the format's stop tokens.
SamplingParams sampling_params(const SamplingParams& request, const ModelConfig& model,
                               const ChatFormat& format);

}  // namespace sluice
