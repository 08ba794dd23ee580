// Several launches of one expert GEMM.
#pragma once
#include <cstdint>

namespace sluice::cuda {

// Which experts a launch serves of several that share them: those with so many rows, both included.
struct ExpertShare {
  int rows_least = 1, rows_most = INT32_MAX;
  int turn = 0;  // which of the launches, from 0 on
};

}  // namespace sluice::cuda
