#include "cuda/memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <numeric>

#include "backends/cuda/queue.h"
#include "base/random.h"
#include "cuda/kernels.h"

namespace sluice::bench {
namespace {

void reshape(Tensor* t, std::initializer_list<int64_t> shape, DType type, void* data) {
  *t = make_tensor(data, type, shape, Backend::kCuda);
}

}  // namespace

Memory::~Memory() {
  (void)device_.wait(stream());  // a fault was already reported by the call that needed the result
  for (void* block : blocks_) device_.release(block);
}

Status Memory::bytes(size_t count, void** out) {
  Result<void*> memory = device_.allocate(count);
  if (!memory.ok()) return memory.status();
  blocks_.push_back(memory.value());
  *out = memory.value();
  return {};
}

Status Memory::tensor(DType type, std::initializer_list<int64_t> shape, Tensor* out) {
  reshape(out, shape, type, nullptr);
  return bytes(static_cast<size_t>(bytes_of(type, elements_of(*out))), &out->data);
}

Status Memory::tensor(const SlotSpec& spec, Tensor* out) {
  const auto& s = spec.shape;
  switch (spec.rank) {
    case 1:
      return tensor(spec.dtype, {s[0]}, out);
    case 2:
      return tensor(spec.dtype, {s[0], s[1]}, out);
    default:
      return invalid("bench: wanted " + std::string(spec.name) + " of rank 1 or 2, found " +
                     std::to_string(spec.rank));
  }
}

Status Memory::fill(const Tensor& tensor, double scale) {
  return fill_normal(tensor, scale, seed_++, stream());
}

Status Memory::random(DType type, std::initializer_list<int64_t> shape, double scale, Tensor* out) {
  SLUICE_TRY(tensor(type, shape, out));
  return fill(*out, scale);
}

Status Memory::random(DType type, std::initializer_list<int64_t> shape, double scale, int64_t count,
                      std::vector<Tensor>* out) {
  SLUICE_TRY(several(type, shape, count, out));
  for (const Tensor& t : *out) SLUICE_TRY(fill(t, scale));
  return {};
}

Status Memory::several(DType type, std::initializer_list<int64_t> shape, int64_t count,
                       std::vector<Tensor>* out) {
  // One allocation for all tensors: allocations take longer than fills.
  constexpr int64_t kAlign = 256;
  Tensor one;
  reshape(&one, shape, type, nullptr);
  const int64_t step = (bytes_of(type, elements_of(one)) + kAlign - 1) / kAlign * kAlign;
  void* block = nullptr;
  SLUICE_TRY(bytes(static_cast<size_t>(step * count), &block));
  for (int64_t i = 0; i < count; ++i) {
    one.data = static_cast<std::byte*>(block) + i * step;
    out->push_back(one);
  }
  return {};
}

Status Memory::upload(const std::vector<int32_t>& values, std::initializer_list<int64_t> shape, Tensor* out) {
  SLUICE_TRY(tensor(DType::kI32, shape, out));
  // On the stream, and complete on return: kernels may read settled inputs before the launches before them have ended.
  SLUICE_TRY(device_.copy(out->data, values.data(), values.size() * sizeof(int32_t), stream()));
  return device_.wait(stream());
}

int64_t cold_sets(int64_t cold_bytes, double bytes_of_run) {
  return std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(cold_bytes) / bytes_of_run) + 1, 1, 64);
}

Status page_tables(Memory& memory, int64_t sets, int64_t count, int64_t rows, int64_t columns,
                   std::vector<Tensor>* out, std::vector<int32_t>* first) {
  std::vector<int32_t> order(static_cast<size_t>(sets * count));
  std::iota(order.begin(), order.end(), 0);
  Random random(3);
  for (size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[static_cast<size_t>(random.integer(0, static_cast<int64_t>(i) - 1))]);
  for (int64_t set = 0; set < sets; ++set) {
    std::vector<int32_t> table(static_cast<size_t>(rows * columns), -1);
    std::copy_n(order.begin() + set * count, count, table.begin());
    SLUICE_TRY(memory.upload(table, {rows, columns}, &out->emplace_back()));
    if (set == 0) *first = std::move(table);
  }
  return {};
}

Status to_host(Device& device, const Tensor& from, HostTensor* out) {
  out->bytes.resize(static_cast<size_t>(bytes_of(from.dtype, elements_of(from))));
  out->tensor = from;
  out->tensor.where = Backend::kCpu;
  out->tensor.data = out->bytes.data();
  SLUICE_TRY(device.copy(out->bytes.data(), from.data, out->bytes.size(), device.stream()));
  return device.wait(device.stream());
}

Status poison(const Tensor& tensor, Stream stream) {
  const auto bytes = static_cast<size_t>(bytes_of(tensor.dtype, elements_of(tensor)));
  return cuda::check(cudaMemsetAsync(tensor.data, 0xff, bytes, cuda::queue_of(stream).stream),
                     "clearing an output");
}

}  // namespace sluice::bench
