// Constant integer tensors in device memory.
#pragma once
#include <string>
#include <vector>

#include "nn/owned_tensor.h"

namespace sluice {

inline Result<OwnedTensor> make_constant(Device& device, const SlotSpec& spec,
                                         const std::vector<int32_t>& host, const std::string& what) {
  auto out = OwnedTensor::make(device, spec, what);
  if (!out.ok()) return out;
  SLUICE_TRY(
      device.copy(out.value().view().data, host.data(), host.size() * sizeof(int32_t), device.stream()));
  SLUICE_TRY(device.wait(device.stream()));
  return out;
}
// i32[tokens, 1], all zeros: the expert ids of a dense layer, which runs as one expert that every token
// chooses.
inline Result<OwnedTensor> make_zeros(Device& device, int64_t tokens) {
  return make_constant(device, slot("zeros", Role::kIn, DType::kI32, {tokens, 1}),
                       std::vector<int32_t>(static_cast<size_t>(tokens), 0), "ids of dense layers");
}
// i32[rows]: first, first + step, ...
inline Result<OwnedTensor> make_row_numbers(Device& device, int64_t rows, int32_t first = 0,
                                            int32_t step = 1) {
  std::vector<int32_t> host(static_cast<size_t>(rows));
  for (size_t i = 0; i < host.size(); ++i) host[i] = first + step * static_cast<int32_t>(i);
  return make_constant(device, slot("rows", Role::kIn, DType::kI32, {rows}), host, "numbers of rows");
}
// The first `rows` rows of `t`.
inline Tensor first_rows(Tensor t, int64_t rows) { return t.shape[0] = rows, t; }

}  // namespace sluice
