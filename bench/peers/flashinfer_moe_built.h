// FlashInfer's dispatcher maps every tile to a kernel. This function calls the kernels that are compiled here and refuses the others.
// bench/peers/build inserts it between the dispatcher and the launcher.
#pragma once
#include <stdexcept>
#include <type_traits>

#include "flashinfer_moe_tiles.h"

namespace tensorrt_llm::kernels::cutlass_kernels_oss {

template <class Tile, class Cluster, class Schedule>
constexpr bool sluice_is_built() {
#define SLUICE_TILE(m, n, k, cluster_m, cluster_n, schedule)                                            \
  if (std::is_same_v<Tile, cute::Shape<cute::Int<m>, cute::Int<n>, cute::Int<k>>> &&                    \
      std::is_same_v<Cluster, cute::Shape<cute::Int<cluster_m>, cute::Int<cluster_n>, cute::Int<1>>> && \
      std::is_same_v<Schedule, cutlass::gemm::KernelTmaWarpSpecialized##schedule>)                      \
    return true;
  SLUICE_FLASHINFER_TILES(SLUICE_TILE)
#undef SLUICE_TILE
  return false;
}

template <class T, class Weight, class Output, class Epilogue, class Tile, class Cluster, class Schedule,
          class EpilogueSchedule, cutlass::WeightOnlyQuantOp kOp,
          cutlass::gemm::collective::MixedInputScaleMode kScale, class... Args>
void sluice_launch_built(const Args&... args) {
  if constexpr (sluice_is_built<Tile, Cluster, Schedule>())
    sm90_generic_mixed_moe_gemm_kernelLauncher<T, Weight, Output, Epilogue, Tile, Cluster, Schedule,
                                               EpilogueSchedule, kOp, kScale>(args...);
  else
    throw std::runtime_error("this tile is not compiled");
}

}  // namespace tensorrt_llm::kernels::cutlass_kernels_oss
