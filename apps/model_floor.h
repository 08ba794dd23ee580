// What a step of a model must at least read and multiply.
#pragma once
#include "nn/decoder.h"

namespace sluice::apps {

// Moving and multiplying at once, each at what the device sustains.
double floor_us(double bytes, double flops, const DeviceInfo& device);

struct Floor {
  double dense_bytes = 0;  // attention's projections, routers, the output layer
  double expert_bytes =
      0;                // experts that some token is expected to choose, if all choose alike and on their own
  double kv_bytes = 0;  // keys and values that are attended to
  double flops = 0;
  double bytes() const { return dense_bytes + expert_bytes + kv_bytes; }
  double us(const DeviceInfo& device) const { return floor_us(bytes(), flops, device); }
};

// A step in which so many sequences decode, each with `context` positions before it.
Floor decode_floor(const DecoderConfig& config, int64_t sequences, int64_t context);
// A prompt of so many tokens that draws one.
Floor prefill_floor(const DecoderConfig& config, int64_t tokens);

}  // namespace sluice::apps
