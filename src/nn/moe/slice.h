// One rank's part of an MoE layer.
#pragma once
#include <cstdint>

#include "nn/moe/layer.h"

namespace sluice {

// Tensor-parallel ranks share the intermediate width of every expert, expert-parallel ranks share the experts.
struct Slice {
  int64_t tp_rank = 0, tp_size = 1;
  int64_t ep_rank = 0, ep_size = 1;
};

// A range of a size.
struct Part {
  int64_t begin = 0, count = 0;
};
// Tensor-parallel: whole blocks of 32, ceil(blocks / tp_size) of them on each rank until none are left; so the last ranks may have
// less (2880 by 4: 736, 736, 736, 672), or nothing.
Part part_of_width(int64_t width, const Slice& slice);
// Expert-parallel: contiguous, as even as can be.
Part part_of_experts(int64_t experts, const Slice& slice);

// The layer of one rank. What all ranks compute adds up to the whole: `intermediate` is its part, the experts are its range
// (scope kRange); W2's bias is added on tp_rank 0 only, the shared expert (cut like the others; as slots, each of them) on
// ep_rank 0 only, the residual stream on the rank that is 0 in both. Router and routing are whole on every rank.
// kInvalidArgument names the rank, what was wanted and what was found: a rank outside its size, a rank without any block or
// expert, a config that is a slice already.
Result<MoeConfig> sliced(const MoeConfig& whole, const Slice& slice);

}  // namespace sluice
