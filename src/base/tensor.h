// A view of memory owned by another object.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/dtype.h"

namespace sluice {

enum class Backend : uint8_t { kCpu, kCuda };
const char* text(Backend backend);

constexpr int kMaxRank = 4;

// Trivially copyable. Strides are in elements; every operation of ops/ requires a contiguous last dimension.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Backend where = Backend::kCpu;
  int8_t rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> stride{};

  bool present() const { return data != nullptr; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  // Pointer to the first element of row `i`; elements must be whole bytes.
  template <class T>
  T* row(int64_t i) const {
    return static_cast<T*>(data) + i * stride[0];
  }
};

// Number of elements by shape; 1 for rank 0.
int64_t elements_of(const Tensor& tensor);
// "bf16[128, 2880]"; strides are printed if the tensor is not contiguous.
std::string text(const Tensor& tensor);
std::string shape_text(const int64_t* shape, int rank);

// A contiguous view of `data`; rank is the number of dimensions given, at most kMaxRank.
Tensor make_tensor(void* data, DType dtype, std::initializer_list<int64_t> shape,
                   Backend where = Backend::kCpu);

// A loan of scratch memory for one enqueue.
struct Workspace {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

// A backend's queue; backends derive from it.
struct DeviceQueue {
  int device = 0;  // index among the backend's devices
};
struct Stream {
  Backend where = Backend::kCpu;
  DeviceQueue* native = nullptr;
};

}  // namespace sluice
