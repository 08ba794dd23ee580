// Dense tensors of a checkpoint in a device's memory: norms, sinks, embeddings and biases as they are, projections packed.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/owned_tensor.h"
#include "weights/checkpoint.h"

namespace sluice {

// A tensor of this shape as `dtype`: copied, or widened from BF16 to f32. Types that would lose something are kUnsupported; a
// missing tensor and another shape are kCorrupt. Messages name file and tensor, what was wanted and what was found.
Result<OwnedTensor> load_dense(Device& device, const Checkpoint& checkpoint, const std::string& name,
                               std::initializer_list<int64_t> shape, DType dtype);

// One of several tensors that stand one below the other in one matrix: [features, width], of a bias [features].
struct DensePart {
  std::string name;
  int64_t features = 0;
};
// The sum of their features, as one bias [features] of `dtype`.
Result<OwnedTensor> load_stacked(Device& device, const Checkpoint& checkpoint,
                                 std::span<const DensePart> parts, DType dtype);
// BF16 [features, width] each, packed as one panels16 matrix, u8[bytes], as ops/linear.h wants `w` of that many features in all:
// {q, k, v} becomes one qkv projection; one part is a matrix as it stands. Packs on `threads` threads (0: one for each processor)
// straight from the mapped file.
Result<OwnedTensor> pack_dense(Device& device, const Checkpoint& checkpoint, std::span<const DensePart> parts,
                               int64_t width, int threads);

// Which numbers weights may hold.
enum class Numbers : uint8_t {
  kFinite,
  kNoNan,  // an infinity means something: a sink that takes nothing, an expert that is never chosen
};
// kCorrupt names file, tensor and element of a bf16, f16 or f32 tensor that holds another one; other types hold any.
Status check_numbers(const CheckpointTensor& tensor, Numbers allowed);

// Fills `to` from a tensor with as many elements, of its type or BF16 for f32. Waits for the copy.
Status copy_converted(Device& device, const CheckpointTensor& from, const Tensor& to);

}  // namespace sluice
