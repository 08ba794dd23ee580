// The expert ids of dense layers: a dense layer is a single expert that every token chooses.
#pragma once
#include "nn/owned_tensor.h"

namespace sluice {

// i32[tokens, 1], all zeros.
inline Result<OwnedTensor> make_zeros(Device& device, int64_t tokens) {
  auto out =
      OwnedTensor::make(device, slot("zeros", Role::kIn, DType::kI32, {tokens, 1}), "ids of dense layers");
  if (!out.ok()) return out;
  const std::vector<int32_t> host(static_cast<size_t>(tokens), 0);
  SLUICE_TRY(
      device.copy(out.value().view().data, host.data(), host.size() * sizeof(int32_t), device.stream()));
  SLUICE_TRY(device.wait(device.stream()));
  return out;
}
// The first `rows` rows of `t`.
inline Tensor first_rows(Tensor t, int64_t rows) { return t.shape[0] = rows, t; }

}  // namespace sluice
