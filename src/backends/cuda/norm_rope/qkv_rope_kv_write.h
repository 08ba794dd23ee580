// What the cards share of the kernels that project to queries, keys and values, turn them and store them.
#pragma once
#include "backends/cuda/linear/linear.h"
#include "ops/bounds.h"
#include "ops/qkv_rope_kv_write.h"

namespace sluice::cuda {

// Of the turn and the write in an epilogue. A guess: less than a launch of its own, and not measured apart.
constexpr double kTurnUs = 0.2;

// Heads that turn as a whole, in halves, `features` of which are the least that is fetched at once.
inline void need_turned_heads(Refusal& r, const QkvRopeKvWrite::Problem& p, int features,
                              const std::string& why) {
  const Rope::Problem& rope = p.rope.rope;
  need_multiple(r, "head_dim", rope.head_dim, features, why);
  r.need(rope.rotary == rope.head_dim, "heads that turn as a whole", "rotary", rope.rotary);
  r.need(rope.pairs == RopePairs::kHalves, "pairs=halves (a box has features of both)",
         "pairs=" + std::string(word(rope.pairs)));
  need_between(r, "page_size", p.rope.page_size, 1, 1 << 16);
}

}  // namespace sluice::cuda
