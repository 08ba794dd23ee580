// What a step of a model must at least read and multiply.
#pragma once
#include "nn/decoder.h"

namespace sluice::apps {

// Moving and multiplying at once, each at what the device sustains.
double floor_us(double bytes, double flops, const DeviceInfo& device);

struct Floor {
  double dense_bytes = 0;   // attention's projections, routers, dense MLPs, the output layer
  double expert_bytes = 0;  // of the experts that some token chose
  double kv_bytes = 0;      // keys and values that are attended to
  double flops = 0;
  double bytes() const { return dense_bytes + expert_bytes + kv_bytes; }
  double us(const DeviceInfo& device) const { return floor_us(bytes(), flops, device); }
};

// Different experts of a layer that so many tokens are expected to choose if every expert is as likely as any other.
double expected_experts(const MoeConfig& moe, int64_t tokens);

// A step in which so many sequences decode, each with `context` positions before it, and reads `experts` of each layer.
Floor decode_floor(const DecoderConfig& config, int64_t sequences, int64_t context, double experts);
// A prompt of so many tokens that draws one, and reads `experts` of each layer.
Floor prefill_floor(const DecoderConfig& config, int64_t tokens, double experts);

}  // namespace sluice::apps
