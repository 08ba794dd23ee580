// Shared by the descriptors of the kernels that project to queries, keys and values, rotate them and store them.
#pragma once
#include "backends/cuda/linear/linear.h"
#include "ops/bounds.h"
#include "ops/fused/qkv_rope_kv_write.h"

namespace sluice::cuda {

// Estimated time of rotation and cache write in an epilogue. Not measured separately; less than a launch.
constexpr double kRotateUs = 0.2;

// Adds the condition that heads are rotated as a whole, with pairs half a head apart. head_dim must be a multiple of `features`.
inline void need_rotated_heads(Refusal& r, const QkvRopeKvWrite::Problem& p, int features,
                               const std::string& why) {
  const Rope::Problem& rope = p.rope.rope;
  need_multiple(r, "head_dim", rope.head_dim, features, why);
  r.need(rope.rotary == rope.head_dim, "heads that are rotated as a whole", "rotary", rope.rotary);
  r.need(rope.pairs == RopePairs::kHalves, "pairs=halves (a TMA box holds features of both halves)",
         "pairs=" + std::string(word(rope.pairs)));
  need_between(r, "page_size", p.rope.page_size, 1, 1 << 16);
}

}  // namespace sluice::cuda
