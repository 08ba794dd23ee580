// Enqueues the decode kernel, for attention_decode_sm90 and for attention_pages_sm90.
#pragma once
#include <string_view>

#include "backends/cuda/attention/cards.h"

namespace sluice::cuda {

Status launch_attention_decode(std::string_view name, const Attention::Problem& p, const Attention::Args& a,
                               const AttentionDecode& how, bool beside, Stream stream);

}  // namespace sluice::cuda
