// Copies a decoder's host weights into device memory.
#pragma once
#include <gtest/gtest.h>

#include <vector>

#include "nn/named_weights.h"

namespace sluice::test {

class DeviceWeights {
 public:
  DeviceWeights(Device& device, const NamedWeights& host) : device_(device), weights_(host) {
    weights_.for_each([&](int32_t, const std::string&, Tensor& tensor) { move(&tensor); });
    EXPECT_TRUE(device_.wait(device_.stream()).ok());
  }
  ~DeviceWeights() {
    for (void* memory : memory_) device_.release(memory);
  }
  DeviceWeights(const DeviceWeights&) = delete;
  DeviceWeights& operator=(const DeviceWeights&) = delete;
  const NamedWeights& get() const { return weights_; }

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
  NamedWeights weights_;
  std::vector<void*> memory_;
};

}  // namespace sluice::test
