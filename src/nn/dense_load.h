// Loads dense tensors of a checkpoint into device memory: norms, sinks, embeddings and biases unchanged, projections packed.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/owned_tensor.h"
#include "weights/checkpoint.h"

namespace sluice {

// The values that weights may contain.
enum class Numbers : uint8_t {
  kFinite,
  kNoNan,  // infinities have a meaning here: a sink that receives nothing, an expert that is never chosen
};
// Number of host threads that load for a device: a CPU device's own number; otherwise 0, which means one thread per processor.
inline int host_threads(const Device& device) {
  return device.shares_host_memory() ? device.info().cores : 0;
}

// One tensor of a checkpoint, with the shape and type that the model needs.
struct DenseTensor {
  std::string name;
  std::vector<int64_t> shape = {};
  DType dtype = DType::kBF16;
  Numbers allowed = Numbers::kFinite;
};
// Loads a tensor of this shape as `dtype`: copied, or converted from another number type
// (weights/numbers.h), on `threads` threads (0: one for each processor). A caller's BF16 tensor may be
// widened to f32; conversions that lose precision and all other types are kUnsupported. A missing tensor,
// another shape or a value that is not allowed is kCorrupt. Messages name the file and tensor, what was wanted
// and what was found. On a device with its own memory, large tensors are uploaded through page-locked
// memory (nn/upload_ring.h). After kCorrupt, nothing stays allocated.
Result<OwnedTensor> load_dense(Device& device, const Checkpoint& checkpoint, const DenseTensor& wanted,
                               int threads);

// One of several tensors that are stacked into one matrix [features, width] or one bias [features]. Values must be finite.
struct DensePart {
  std::string name;
  int64_t features = 0;
};
// Stacks biases into one bias [sum of features] of `dtype`.
Result<OwnedTensor> load_stacked(Device& device, const Checkpoint& checkpoint,
                                 std::span<const DensePart> parts, DType dtype);
// Stacks matrices [features, width] into one bf16 matrix, the `w` of ops/linear.h with the sum of their
// features, in the layout of the device's dense kernels (DeviceInfo::layout): {q, k, v} becomes one QKV
// projection. panels16: u8[bytes], packed directly from the mapped file. Row-major: bf16 [features, width],
// copied like load_dense. kUnsupported: a layout that only the device itself could pack.
Result<OwnedTensor> pack_dense(Device& device, const Checkpoint& checkpoint, std::span<const DensePart> parts,
                               int64_t width, int threads);

// kCorrupt names the file, tensor and element of the first forbidden value of a bf16, f16 or f32 tensor. Other
// types always pass.
Status check_numbers(const CheckpointTensor& tensor, Numbers allowed);

// Fills `to` from a tensor of equal size, of the same or another number type. Waits for the copy.
Status copy_converted(Device& device, const CheckpointTensor& from, const Tensor& to);

}  // namespace sluice
