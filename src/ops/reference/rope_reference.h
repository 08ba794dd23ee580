// Helpers shared by references of operations that rotate heads.
#pragma once
#include "ops/rope.h"

namespace sluice {

// Rotates x, [tokens, heads, head_dim] with bounds, by args.positions and args.table, and updates the bounds.
void rotate(const Rope::Problem& problem, const Rope::Args& args, Expected* x);

}  // namespace sluice
