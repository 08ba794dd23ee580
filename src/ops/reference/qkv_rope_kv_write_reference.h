// Helpers shared by references of operations that rotate the heads of a projection and write them to caches.
#pragma once
#include "ops/fused/qkv_rope_kv_write.h"

namespace sluice {

// The outputs of QkvRopeKvWrite, computed from y [tokens, features] and its bounds.
Expectations rotated_and_written(const QkvRopeKvWrite::Problem& problem, const QkvRopeKvWrite::Args& args,
                                 const Expected& y);

}  // namespace sluice
