// The small decoder on a device with its own memory: weights are copied there, in the device's layouts.
#pragma once
#include "harness/device_weights.h"
#include "harness/engine_runs.h"
#include "harness/far_device.h"

namespace sluice::test {

class FarModel {
 public:
  std::unique_ptr<Engine> engine(const EngineOptions& options) {
    return engine_of(device_, model_.config, weights_.get(), options);
  }
  // Launches each step separately, once the previous step's tokens are known.
  std::unique_ptr<Engine> plain_engine() {
    EngineOptions options = invariant();
    options.steps_ahead = 0, options.recorded_sequences = 0;
    return engine(options);
  }
  Device& device() { return device_; }

 private:
  static DecoderConfig config() {
    DecoderConfig c = small_decoder();
    for (LayerConfig& layer : c.layers) {
      layer.mlp.layout = layout_for(Backend::kCuda);
      layer.mlp.intermediate = 64;
      layer.attention.layout = WeightLayout::kRowMajor;
    }
    return c;
  }
  FarDevice device_;
  DecoderModel model_{config()};
  DeviceWeights weights_{device_, model_.weights};
};

}  // namespace sluice::test
