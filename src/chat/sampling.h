// The sampling of an answer with the defaults of its model and chat format.
#pragma once
#include "engine/request.h"

namespace sluice {

class ChatFormat;
struct ModelConfig;

// Fills absent values of `request` with the model's defaults (generation_config.json), and adds the stop tokens of the model and the format.
SamplingParams sampling_params(const SamplingParams& request, const ModelConfig& model,
                               const ChatFormat& format);

}  // namespace sluice
