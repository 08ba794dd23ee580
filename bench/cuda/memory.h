// Tensors on the GPU for as long as a shape is measured.
#pragma once
#include <string>
#include <vector>

#include "dispatch/device.h"
#include "ops/op.h"

namespace sluice::bench {

constexpr DType kF = DType::kF32, kB = DType::kBF16;

class Memory {
 public:
  explicit Memory(Device& device) : device_(device) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  Device& device() { return device_; }
  Stream stream() { return device_.stream(); }
  Status bytes(size_t count, void** out);
  Status tensor(DType type, std::initializer_list<int64_t> shape, Tensor* out);
  Status tensor(const SlotSpec& spec, Tensor* out);
  // Fills with normally distributed numbers, different ones in each call; bf16 or f32.
  Status fill(const Tensor& tensor, double scale);
  // Makes and fills a tensor.
  Status random(DType type, std::initializer_list<int64_t> shape, double scale, Tensor* out);
  // Makes `count` tensors with different numbers.
  Status random(DType type, std::initializer_list<int64_t> shape, double scale, int64_t count,
                std::vector<Tensor>* out);
  Status several(DType type, std::initializer_list<int64_t> shape, int64_t count, std::vector<Tensor>* out);
  // Makes a tensor of these numbers.
  Status upload(const std::vector<int32_t>& values, std::initializer_list<int64_t> shape, Tensor* out);

 private:
  Device& device_;
  std::vector<void*> blocks_;
  uint64_t seed_ = 1;
};

// Rotates buffers.
inline const Tensor& turn(const std::vector<Tensor>& buffers, int64_t i) {
  return buffers[static_cast<size_t>(i) % buffers.size()];
}
inline Tensor first_rows(Tensor t, int64_t rows) { return t.shape[0] = rows, t; }
inline Tensor row_of(Tensor t, int64_t row) {
  t.data = static_cast<std::byte*>(t.data) + bytes_of(t.dtype, row * t.stride[0]);
  return first_rows(t, 1);
}

// A contiguous copy of a tensor on the host. `from` is contiguous, too.
struct HostTensor {
  std::string bytes;
  Tensor tensor;
};
Status to_host(Device& device, const Tensor& from, HostTensor* out);

// How many copies of what a run reads must take turns, so that each is cold when its turn comes again: 1 to 64.
int64_t cold_sets(int64_t cold_bytes, double bytes_of_run);

// Page tables i32[rows, columns] of `sets` disjoint sets of pages, each of `count` pages, which stand in front, and -1. Pages of a
// sequence lie apart, as after some hours of serving. `first`: the numbers of the first table.
Status page_tables(Memory& memory, int64_t sets, int64_t count, int64_t rows, int64_t columns,
                   std::vector<Tensor>* out, std::vector<int32_t>* first);

// All bytes 0xff: NaN in floating types, -1 in integers.
Status poison(const Tensor& tensor, Stream stream);

}  // namespace sluice::bench
