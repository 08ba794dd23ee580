// The roofline of a model's step: the bytes and flops that the step cannot avoid.
#pragma once
#include "nn/decoder.h"

namespace sluice::apps {

// Assumes that memory and arithmetic overlap, each at the device's sustained rate.
double floor_us(double bytes, double flops, const DeviceInfo& device);

struct Floor {
  double dense_bytes = 0;   // attention's projections, routers, dense MLPs, the output layer
  double expert_bytes = 0;  // experts that at least one token chooses
  double kv_bytes = 0;      // keys and values that attention reads
  double flops = 0;
  double bytes() const { return dense_bytes + expert_bytes + kv_bytes; }
  double us(const DeviceInfo& device) const { return floor_us(bytes(), flops, device); }
};

// The expected number of distinct experts per layer that the tokens choose, if all experts are equally likely.
double expected_experts(const MoeConfig& moe, int64_t tokens);

// The roofline of a decode step of that many sequences, each with `context` previous positions, that reads `experts` experts per layer.
Floor decode_floor(const DecoderConfig& config, int64_t sequences, int64_t context, double experts);
// The roofline of a prefill of that many tokens that samples one token and reads `experts` experts per layer.
Floor prefill_floor(const DecoderConfig& config, int64_t tokens, double experts);

}  // namespace sluice::apps
