// Helpers shared by references of operations that write a paged cache.
#pragma once
#include "ops/kv_write.h"

namespace sluice {

// The content of `cache` after `rows`, [tokens, kv_heads * head_dim] known within bounds, were written to slot_of. In
// an e4m3 cache an element may be any number between the two ends of its bound after they are rounded to e4m3.
Expected written(std::string_view slot, const KvWrite::Problem& problem, const Tensor& slot_of,
                 const Expected& rows, const Tensor& cache);

}  // namespace sluice
