// Sizes of Queue::meeting. Apart, as costs and limits of kernels depend on them: plain C++.
#pragma once
#include <cstddef>

namespace sluice::cuda {

// Bytes of Queue::meeting, and behind them those for sums that blocks of a grid give each other (expert_fewtokens.cuh).
constexpr size_t kGridWordsBytes = size_t{256} << 10, kGridSumBytes = size_t{2} << 20;

}  // namespace sluice::cuda
