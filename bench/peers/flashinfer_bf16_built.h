// FlashInfer's dispatchers map every tile to a kernel. These functions call the kernels of flashinfer_bf16_tiles.h, which are
// compiled here, and refuse the others. bench/peers/build inserts them between the dispatchers and the launchers.
#pragma once
#include <type_traits>

#include "flashinfer_bf16_tiles.h"

namespace tensorrt_llm::kernels::cutlass_kernels_oss {

using SluiceFusion = cutlass_kernels::TmaWarpSpecializedGroupedGemmInput::EpilogueFusion;

template <SluiceFusion kFusion, class Tile, class Cluster, bool kSwap>
constexpr bool sluice_hopper_tile_is_built() {
#define SLUICE_TILE(swap, fusion, m, n, cluster_m, cluster_n)                                         \
  if (kSwap == swap && kFusion == SluiceFusion::fusion &&                                             \
      std::is_same_v<Tile, cute::Shape<cute::Int<m>, cute::Int<n>, cute::Int<64>>> &&                 \
      std::is_same_v<Cluster, cute::Shape<cute::Int<cluster_m>, cute::Int<cluster_n>, cute::Int<1>>>) \
    return true;
  SLUICE_FLASHINFER_TILES(SLUICE_TILE)
#undef SLUICE_TILE
  return false;
}

// Replaces tma_warp_specialized_generic_moe_gemm_kernelLauncher.
template <class Arch, class T, class Weight, class Output, class EpilogueSchedule, class Epilogue,
          SluiceFusion kFusion, class Tile, class Cluster, bool kBlockScaled, bool kDynamicCluster,
          bool kBias, bool kSwap>
void sluice_launch_hopper(cutlass_kernels::TmaWarpSpecializedGroupedGemmInput input, int experts, int cores,
                          cudaStream_t stream, int* occupancy, size_t* workspace_size,
                          cute::Shape<int32_t, int32_t, cute::_1> dynamic_cluster,
                          cute::Shape<int32_t, int32_t, cute::_1> fallback_cluster) {
  if constexpr (sluice_hopper_tile_is_built<kFusion, Tile, Cluster, kSwap>())
    tma_warp_specialized_generic_moe_gemm_kernelLauncher<Arch, T, Weight, Output, EpilogueSchedule, Epilogue,
                                                         kFusion, Tile, Cluster, kBlockScaled,
                                                         kDynamicCluster, kBias, kSwap>(
        input, experts, cores, stream, occupancy, workspace_size, dynamic_cluster, fallback_cluster);
  else
    TLLM_THROW("this tile is not compiled");  // FlashInfer's search for the largest workspace skips it
}

template <class Tile, int kStages>
constexpr bool sluice_ampere_tile_is_built() {
#define SLUICE_TILE(rows, stages) \
  if (std::is_same_v<Tile, cutlass::gemm::GemmShape<rows, 128, 64>> && kStages == stages) return true;
  SLUICE_FLASHINFER_AMPERE_TILES(SLUICE_TILE)
#undef SLUICE_TILE
  return false;
}

template <typename T, typename Weight, typename Output, typename Arch, cutlass::WeightOnlyQuantOp kOp,
          typename Epilogue, typename Tile, typename WarpTile, int kStages>
struct genericMoeGemmKernelLauncher;

// Replaces genericMoeGemmKernelLauncher: the GEMM alone or with relu(y)^2, and the GEMM with silu(gate) * up.
template <class T, class Weight, class Output, class Arch, cutlass::WeightOnlyQuantOp kOp, class Epilogue,
          class Tile, class WarpTile, int kStages>
struct SluiceLaunchAmpere {
  static void call(cutlass_kernels::GroupedGemmInput<T, Weight, Output, Output> in, int cores) {
    using namespace tensorrt_llm::cutlass_extensions;
    if constexpr (std::is_same_v<Arch, cutlass::arch::Sm80> && kOp == cutlass::WeightOnlyQuantOp::UNDEFINED &&
                  sluice_ampere_tile_is_built<Tile, kStages>()) {
      if constexpr (std::is_same_v<Epilogue, EpilogueOpDefaultSilu>) {
        using Element = cutlass::bfloat16_t;
        TLLM_CHECK(in.use_fused_moe);
        sm80_generic_fused_moe_gemm_kernelLauncher<Element, Element, Tile::kM, Tile::kN, Tile::kK, kStages,
                                                   Epilogue>(
            reinterpret_cast<const Element*>(in.A), reinterpret_cast<const Element*>(in.B),
            reinterpret_cast<const Element*>(in.biases), in.bias_is_broadcast,
            reinterpret_cast<Element*>(in.C), in.total_tokens_including_expert, in.num_rows, in.n, in.k,
            in.num_experts, cores, in.stream, in.occupancy);
        return;
      } else if constexpr (std::is_same_v<Epilogue, EpilogueOpDefault> ||
                           std::is_same_v<Epilogue, EpilogueOpDefaultRelu2>) {
        genericMoeGemmKernelLauncher<T, Weight, Output, Arch, kOp, Epilogue, Tile, WarpTile, kStages>::call(
            in, cores);
        return;
      }
    }
    TLLM_THROW("this tile is not compiled");
  }
};

}  // namespace tensorrt_llm::kernels::cutlass_kernels_oss
