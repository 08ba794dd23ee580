// Several launches of one expert GEMM.
#pragma once
#include <cstdint>

namespace sluice::cuda {

// In which order a launch takes its experts (kernels/expert_tile_list.cuh).
enum class ExpertOrder : int {
  kGiven,
  kByWidth,  // those of the widest tiles first, so that the last to run are the shortest
  kLong,     // as given too, of more experts or tiles than are counted at once
};

// Which experts a launch serves of several that share them: those with so many rows, both included.
struct ExpertShare {
  int rows_least = 1, rows_most = INT32_MAX;
  int turn = 0;  // which of the launches, from 0 on
  ExpertOrder order = ExpertOrder::kGiven;
};

}  // namespace sluice::cuda
