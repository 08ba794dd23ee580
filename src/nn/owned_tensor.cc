#include "nn/owned_tensor.h"

namespace sluice {

std::string wanted_and_free(const Device& device, int64_t bytes) {
  return "wanted " + std::to_string(bytes) + " bytes, " + std::to_string(device.free_bytes()) + " are free";
}

Tensor tensor_at(void* data, Backend where, const SlotSpec& spec) {
  Tensor t{.data = data,
           .dtype = spec.dtype,
           .where = where,
           .rank = static_cast<int8_t>(spec.rank),
           .shape = spec.shape};
  int64_t stride = 1;
  for (int i = spec.rank - 1; i >= 0; --i) {
    t.stride[static_cast<size_t>(i)] = stride;
    stride *= spec.shape[static_cast<size_t>(i)];
  }
  return t;
}

int64_t bytes_of_slot(const SlotSpec& spec) {
  int64_t elements = 1;
  for (int i = 0; i < spec.rank; ++i) elements *= spec.shape[static_cast<size_t>(i)];
  return bytes_of(spec.dtype, elements);
}

Tensor shaped_like(const SlotSpec& spec, const Tensor& tensor) {
  int64_t elements = 1;
  for (int i = 0; i < spec.rank; ++i) elements *= spec.shape[static_cast<size_t>(i)];
  if (spec.dtype != tensor.dtype || elements != elements_of(tensor)) return tensor;
  return tensor_at(tensor.data, tensor.where, spec);
}

Result<OwnedTensor> OwnedTensor::make(Device& device, const SlotSpec& spec, const std::string& what) {
  const int64_t bytes = bytes_of_slot(spec);
  const auto memory = device.allocate(static_cast<size_t>(bytes));
  if (!memory.ok())
    return Status{memory.status().code,
                  what + ": " + wanted_and_free(device, bytes) + ": " + memory.status().message};
  OwnedTensor out;
  out.device_ = &device;
  out.tensor_ = tensor_at(memory.value(), device.info().backend, spec);
  return out;
}

}  // namespace sluice
