// What references of operations share that turn the heads of a projection and write them.
#pragma once
#include "ops/qkv_rope_kv_write.h"

namespace sluice {

// What QkvRopeKvWrite leaves of y, [tokens, features] known within bounds.
Expectations turned_and_written(const QkvRopeKvWrite::Problem& problem, const QkvRopeKvWrite::Args& args,
                                const Expected& y);

}  // namespace sluice
