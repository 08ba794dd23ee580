// What references of operations that write a paged cache share.
#pragma once
#include "ops/kv_write.h"

namespace sluice {

// What `cache` holds once `rows`, [tokens, kv_heads * head_dim] known within bounds, were written to slot_of. In a cache of e4m3 an
// element may be whatever lies between what the ends of its bound become.
Expected written(std::string_view slot, const KvWrite::Problem& problem, const Tensor& slot_of,
                 const Expected& rows, const Tensor& cache);

}  // namespace sluice
