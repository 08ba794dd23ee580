#include "nn/owned_tensor.h"

namespace sluice {

std::string wanted_and_free(const Device& device, int64_t bytes) {
  return "wanted " + std::to_string(bytes) + " bytes, " + std::to_string(device.free_bytes()) + " are free";
}

Result<OwnedTensor> OwnedTensor::make(Device& device, const SlotSpec& spec, const std::string& what) {
  Tensor t{.dtype = spec.dtype,
           .where = device.info().backend,
           .rank = static_cast<int8_t>(spec.rank),
           .shape = spec.shape};
  int64_t stride = 1;
  for (int i = spec.rank - 1; i >= 0; --i) {
    t.stride[static_cast<size_t>(i)] = stride;
    stride *= spec.shape[static_cast<size_t>(i)];
  }
  const int64_t bytes = bytes_of(t.dtype, stride);
  const auto memory = device.allocate(static_cast<size_t>(bytes));
  if (!memory.ok())
    return Status{memory.status().code,
                  what + ": " + wanted_and_free(device, bytes) + ": " + memory.status().message};
  t.data = memory.value();
  OwnedTensor out;
  out.device_ = &device;
  out.tensor_ = t;
  return out;
}

}  // namespace sluice
