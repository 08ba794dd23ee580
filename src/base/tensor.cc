#include "base/tensor.h"

namespace sluice {

const char* text(Backend backend) { return backend == Backend::kCpu ? "cpu" : "cuda"; }

int64_t elements_of(const Tensor& tensor) {
  int64_t count = 1;
  for (int i = 0; i < tensor.rank; ++i) count *= tensor.shape[i];
  return count;
}

std::string shape_text(const int64_t* shape, int rank) {
  std::string out = "[";
  for (int i = 0; i < rank; ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

std::string text(const Tensor& tensor) {
  std::string out = text(tensor.dtype) + shape_text(tensor.shape.data(), tensor.rank);
  int64_t contiguous = 1;
  bool odd = false;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    odd |= tensor.shape[i] > 1 && tensor.stride[i] != contiguous;
    contiguous *= tensor.shape[i];
  }
  if (odd) out += " strides " + shape_text(tensor.stride.data(), tensor.rank);
  return out;
}

Tensor make_tensor(void* data, DType dtype, std::initializer_list<int64_t> shape, Backend where) {
  Tensor out{.data = data, .dtype = dtype, .where = where};
  for (int64_t size : shape)
    if (out.rank < kMaxRank) out.shape[out.rank++] = size;
  int64_t stride = 1;
  for (int i = out.rank - 1; i >= 0; --i) {
    out.stride[i] = stride;
    stride *= out.shape[i];
  }
  return out;
}

}  // namespace sluice
