// What references of operations that turn heads share.
#pragma once
#include "ops/rope.h"

namespace sluice {

// Turns x, [tokens, heads, head_dim] known within bounds, by args.positions and args.table; the bounds follow.
void turn(const Rope::Problem& problem, const Rope::Args& args, Expected* x);

}  // namespace sluice
