// The slice of an MoE layer that one rank holds.
#pragma once
#include <cstdint>

#include "nn/moe/layer.h"

namespace sluice {

// Tensor-parallel ranks split the intermediate width of every expert; expert-parallel ranks split the
// experts.
struct Slice {
  int64_t tp_rank = 0, tp_size = 1;
  int64_t ep_rank = 0, ep_size = 1;
};

// The range [begin, begin + count).
struct Part {
  int64_t begin = 0, count = 0;
};
// Tensor-parallel: whole blocks of 32 columns (64 for weights with WeightScales::kBlocks). Each rank gets
// ceil(blocks / tp_size) blocks until none are left, so the last ranks may have fewer blocks (2880 columns on
// 4 ranks: 736, 736, 736, 672) or none.
Part part_of_width(int64_t width, const Slice& slice, WeightFormat format = {});
// Expert-parallel: contiguous ranges whose sizes differ by at most 1.
Part part_of_experts(int64_t experts, const Slice& slice);

// Returns the layer config of one rank; the outputs of all ranks sum to the whole layer's output.
// `intermediate` is the rank's part. With ep_size > 1, the rank's experts are a range (scope kRange). The
// router is replicated. Only tp_rank 0 adds W2's bias. Only ep_rank 0 computes the shared expert, whose width
// is split like the routed experts' width (for a shared expert as slots, the width of each slot is split).
// Only the rank with tp_rank 0 and ep_rank 0 adds the residual stream.
//
// kInvalidArgument names the rank, what was wanted and what was found: a rank outside its size, a rank that
// would have no block or no expert, or a config that is already a slice.
Result<MoeConfig> sliced(const MoeConfig& whole, const Slice& slice);

}  // namespace sluice
