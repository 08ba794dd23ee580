// Sizes of Queue::grid_words. They are plain C++ in a separate file, because costs and limits of kernels depend on them.
#pragma once
#include <cstddef>

namespace sluice::cuda {

// Queue::grid_words begins with kGridWordsBytes of counters and flags. kGridSumBytes follow, for partial sums that the CTAs of a
// grid exchange (experts/fused/fused_fewtokens.cuh).
constexpr size_t kGridWordsBytes = size_t{256} << 10, kGridSumBytes = size_t{2} << 20;

}  // namespace sluice::cuda
