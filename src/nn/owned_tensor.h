// Tensors in device memory that are released on destruction.
#pragma once
#include <string>
#include <utility>

#include "dispatch/device.h"
#include "ops/op.h"

namespace sluice {

// Returns the tensor that a slot describes, contiguous at `data` in memory of backend `where`.
Tensor tensor_at(void* data, Backend where, const SlotSpec& spec);
int64_t bytes_of_slot(const SlotSpec& spec);
// Returns the tensor with the slot's shape if the numbers of elements agree; otherwise returns the tensor
// unchanged. Needed because files store some 3-D tensors as 2-D.
Tensor shaped_like(const SlotSpec& spec, const Tensor& tensor);

class OwnedTensor {
 public:
  OwnedTensor() = default;
  // kOutOfMemory names `what`, the bytes needed and the bytes free.
  static Result<OwnedTensor> make(Device& device, const SlotSpec& spec, const std::string& what);
  OwnedTensor(OwnedTensor&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), tensor_(std::exchange(other.tensor_, {})) {}
  OwnedTensor& operator=(OwnedTensor&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(tensor_, other.tensor_);
    return *this;
  }
  ~OwnedTensor() {
    if (device_) device_->release(tensor_.data);
  }
  const Tensor& view() const { return tensor_; }
  int64_t bytes() const { return device_ ? bytes_of(tensor_.dtype, elements_of(tensor_)) : 0; }

 private:
  Device* device_ = nullptr;
  Tensor tensor_;
};

// "wanted 12 bytes, 7 are free"
std::string wanted_and_free(const Device& device, int64_t bytes);

}  // namespace sluice
