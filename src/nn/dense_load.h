// Dense tensors of a checkpoint in a device's memory: norms, sinks, embeddings and biases as they are, projections packed.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/owned_tensor.h"
#include "weights/checkpoint.h"

namespace sluice {

// Which numbers weights may hold.
enum class Numbers : uint8_t {
  kFinite,
  kNoNan,  // an infinity means something: a sink that takes nothing, an expert that is never chosen
};
// Threads of the host that load for a device: a CPU's own, and all processors for another one. 0: one for each processor.
inline int host_threads(const Device& device) {
  return device.shares_host_memory() ? device.info().cores : 0;
}

// One tensor of a checkpoint as it is wanted.
struct DenseTensor {
  std::string name;
  std::vector<int64_t> shape = {};
  DType dtype = DType::kBF16;
  Numbers allowed = Numbers::kFinite;
};
// A tensor of this shape as `dtype`: copied, or converted from another type of numbers (weights/numbers.h), on `threads` threads (0: one
// for each processor). Of a caller's tensors BF16 is widened to f32, and types that would lose something are kUnsupported; so are all
// other types. A missing tensor, another shape and numbers that are not allowed are kCorrupt. Messages
// name file and tensor, what was wanted and what was found. To a device with memory of its own, large tensors go through page-locked
// memory (nn/upload_ring.h). After an error of kCorrupt nothing is kept.
Result<OwnedTensor> load_dense(Device& device, const Checkpoint& checkpoint, const DenseTensor& wanted,
                               int threads);

// One of several tensors that stand one below the other in one matrix: [features, width], or a bias [features]. Finite numbers.
struct DensePart {
  std::string name;
  int64_t features = 0;
};
// The sum of their features, as one bias [features] of `dtype`.
Result<OwnedTensor> load_stacked(Device& device, const Checkpoint& checkpoint,
                                 std::span<const DensePart> parts, DType dtype);
// Numbers [features, width] each, as one bf16 matrix that ops/linear.h wants as `w` of that many features in all, in the layout of the device's
// dense kernels (DeviceInfo::layout): {q, k, v} becomes one qkv projection; one part is a matrix as it stands. In panels16,
// u8[bytes], packed straight from the mapped file; row-major, bf16 [features, width], copied as load_dense does. kUnsupported: a
// layout that only the device itself could pack.
Result<OwnedTensor> pack_dense(Device& device, const Checkpoint& checkpoint, std::span<const DensePart> parts,
                               int64_t width, int threads);

// kCorrupt names file, tensor and element of a bf16, f16 or f32 tensor that holds another one; other types hold any.
Status check_numbers(const CheckpointTensor& tensor, Numbers allowed);

// Fills `to` from a tensor with as many elements, of its type or another type of numbers. Waits for the copy.
Status copy_converted(Device& device, const CheckpointTensor& from, const Tensor& to);

}  // namespace sluice
