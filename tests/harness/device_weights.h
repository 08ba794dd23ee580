// A decoder's weights in a device's memory, as they lie on the host.
#pragma once
#include <gtest/gtest.h>

#include <vector>

#include "nn/decoder.h"

namespace sluice::test {

class DeviceWeights {
 public:
  DeviceWeights(Device& device, const DecoderConfig& config, const DecoderWeights& host)
      : device_(device), weights_(host) {
    DecoderWeights& w = weights_;
    for (Tensor* t : {&w.embedding, &w.final_norm, &w.lm_head}) move(t);
    for (DecoderLayerWeights& l : w.layers) {
      AttentionWeights& a = l.attention;
      for (Tensor* t : {&l.attention_norm, &l.moe_norm, &a.qkv, &a.qkv_bias, &a.o, &a.o_bias, &a.sinks,
                        &a.q_norm, &a.k_norm})
        move(t);
      for (auto& [spec, tensor] : weight_slots(config.moe, &l.moe))
        if (spec.used) move(tensor);
    }
    EXPECT_TRUE(device_.wait(device_.stream()).ok());
  }
  ~DeviceWeights() {
    for (void* memory : memory_) device_.release(memory);
  }
  DeviceWeights(const DeviceWeights&) = delete;
  DeviceWeights& operator=(const DeviceWeights&) = delete;
  const DecoderWeights& get() const { return weights_; }

 private:
  void move(Tensor* t) {
    if (!t->present()) return;
    const auto bytes = static_cast<size_t>(bytes_of(t->dtype, elements_of(*t)));
    const auto memory = device_.allocate(bytes);
    ASSERT_TRUE(memory.ok()) << memory.status().message;
    memory_.push_back(memory.value());
    EXPECT_TRUE(device_.copy(memory.value(), t->data, bytes, device_.stream()).ok());
    t->data = memory.value();
    t->where = device_.info().backend;
  }
  Device& device_;
  DecoderWeights weights_;
  std::vector<void*> memory_;
};

}  // namespace sluice::test
