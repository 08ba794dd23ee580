// The part of an MoE layer that one rank holds.
#pragma once
#include <cstdint>

#include "nn/moe/layer.h"

namespace sluice {

// Tensor-parallel ranks split the intermediate width of every expert; expert-parallel ranks split the experts.
struct Slice {
  int64_t tp_rank = 0, tp_size = 1;
  int64_t ep_rank = 0, ep_size = 1;
};

// The range [begin, begin + count).
struct Part {
  int64_t begin = 0, count = 0;
};
// Tensor-parallel: whole blocks of 32 (of 64 where weights have scales of blocks), ceil(blocks / tp_size) on each rank until none are
// left. So the last ranks may have less (2880 by 4: 736, 736, 736, 672) or nothing.
Part part_of_width(int64_t width, const Slice& slice, WeightFormat format = {});
// Expert-parallel: contiguous ranges of sizes as equal as possible.
Part part_of_experts(int64_t experts, const Slice& slice);

// Returns the layer of one rank. The outputs of all ranks sum to the whole layer's output: `intermediate`
// is the rank's part, and its experts are a range (scope kRange). W2's bias is added on tp_rank 0 only; the
// shared expert (cut like the others; as slots, each of them) on ep_rank 0 only; the residual stream on the
// rank that is 0 in both. Every rank has the whole router and routing.
// kInvalidArgument names the rank, what was wanted and what was found: a rank outside its size, a rank
// without any block or expert, or a config that is already a slice.
Result<MoeConfig> sliced(const MoeConfig& whole, const Slice& slice);

}  // namespace sluice
