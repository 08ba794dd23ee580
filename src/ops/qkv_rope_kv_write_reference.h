// Helpers shared by references of operations that rotate the heads of a projection and write them.
#pragma once
#include "ops/qkv_rope_kv_write.h"

namespace sluice {

// The outputs of QkvRopeKvWrite for y, [tokens, features] with bounds.
Expectations rotated_and_written(const QkvRopeKvWrite::Problem& problem, const QkvRopeKvWrite::Args& args,
                                 const Expected& y);

}  // namespace sluice
