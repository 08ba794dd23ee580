// A replacement for the parts of PyTorch that vLLM's kernel files use: a tensor is a pointer with a shape, new memory comes from the
// caller's scratch, and the current stream is a variable. bench/peers/build generates headers that include this file.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>

namespace c10 {
struct Float8_e4m3fn {
  uint8_t x;
};
struct Float8_e4m3fnuz {
  uint8_t x;
};
struct Half {
  uint16_t x;
};
struct BFloat16 {
  uint16_t x;
};
}  // namespace c10

namespace torch {
namespace headeronly {
enum class ScalarType {
  Byte,
  Char,
  Short,
  Int,
  Long,
  UInt16,
  UInt32,
  UInt64,
  Half,
  BFloat16,
  Float,
  Bool,
  Float8_e4m3fn,
  Float8_e5m2
};
}

namespace stable {
struct Tensor {
  void* data = nullptr;
  int64_t sizes[2] = {0, 0};
  int dims = 0;
  headeronly::ScalarType type = headeronly::ScalarType::Int;

  Tensor() = default;
  Tensor(const void* data_, std::initializer_list<int64_t> shape, headeronly::ScalarType type_)
      : data(const_cast<void*>(data_)), type(type_) {
    for (const int64_t size : shape) sizes[dims++] = size;
  }
  headeronly::ScalarType scalar_type() const { return type; }
  int dim() const { return dims; }
  int64_t size(int i) const { return sizes[i < 0 ? i + dims : i]; }
  int64_t numel() const {
    int64_t count = 1;
    for (int i = 0; i < dims; ++i) count *= sizes[i];
    return count;
  }
  bool is_contiguous() const { return true; }
  int device() const { return 0; }
  int get_device_index() const { return 0; }
  void* mutable_data_ptr() const { return data; }
  const void* const_data_ptr() const { return data; }
  void* data_ptr() const { return data; }
  template <class T>
  T* mutable_data_ptr() const {
    return static_cast<T*>(data);
  }
  template <class T>
  const T* const_data_ptr() const {
    return static_cast<const T*>(data);
  }
};

namespace accelerator {
struct DeviceGuard {
  explicit DeviceGuard(int) {}
};
}  // namespace accelerator
}  // namespace stable
}  // namespace torch

namespace sluice_shim {
inline thread_local cudaStream_t stream = nullptr;
inline thread_local char* scratch = nullptr;  // the memory of new_empty(); callers need only 4-byte elements

inline void* take(size_t bytes) {
  void* found = scratch;
  scratch += (bytes + 255) / 256 * 256;
  return found;
}
}  // namespace sluice_shim

namespace torch::stable {
inline Tensor new_empty(const Tensor&, std::initializer_list<int64_t> shape, headeronly::ScalarType type) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return Tensor(sluice_shim::take(static_cast<size_t>(count) * 4), shape, type);
}
}  // namespace torch::stable

inline cudaStream_t get_current_cuda_stream(int = -1) { return sluice_shim::stream; }

#define STD_TORCH_CHECK(condition, ...) \
  if (!(condition)) throw std::runtime_error("vLLM's check failed: " #condition)
// Ids are int32 here, so one case is enough.
#define VLLM_STABLE_DISPATCH_INTEGRAL_AND_UNSIGNED_TYPES(type, name, ...) \
  do {                                                                    \
    using scalar_t = int32_t;                                             \
    __VA_ARGS__();                                                        \
  } while (false)
