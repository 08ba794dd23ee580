// The roofline of a model's step: the bytes and flops that the step cannot avoid.
#pragma once
#include "nn/decoder.h"

namespace sluice::apps {

// The roofline in microseconds: the larger of the memory time and the arithmetic time, at the device's sustained rates.
double floor_us(double bytes, double flops, const DeviceInfo& device);

struct Floor {
  double dense_bytes = 0;   // attention's projections, routers, dense MLPs, the output layer
  double expert_bytes = 0;  // experts that at least one token chooses
  double kv_bytes = 0;      // keys and values that attention reads
  double flops = 0;
  double bytes() const { return dense_bytes + expert_bytes + kv_bytes; }
  double us(const DeviceInfo& device) const { return floor_us(bytes(), flops, device); }
};

// The expected number of distinct experts that `tokens` tokens choose in a layer, if all experts are equally likely.
double expected_experts(const MoeConfig& moe, int64_t tokens);

// The roofline of a decode step of `sequences` sequences with `context` previous positions each, which reads `experts` experts per layer.
Floor decode_floor(const DecoderConfig& config, int64_t sequences, int64_t context, double experts);
// The roofline of a prefill of `tokens` tokens, which samples one token and reads `experts` experts per layer.
Floor prefill_floor(const DecoderConfig& config, int64_t tokens, double experts);

}  // namespace sluice::apps
