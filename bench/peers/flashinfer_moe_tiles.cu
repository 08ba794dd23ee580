// One part of FlashInfer's MXFP4 GEMM for Hopper: the tiles of SLUICE_FLASHINFER_TILES_<PART>, compiled with -DPART=1 to 6.
#include "tensorrt_llm/kernels/cutlass_kernels/moe_gemm/launchers/moe_gemm_tma_ws_mixed_input_launcher.inl"

#include "flashinfer_moe_tiles.h"

namespace tensorrt_llm::kernels::cutlass_kernels_oss {

#define TILE(m, n, k, cluster_m, cluster_n, schedule)                                                      \
  template void sm90_generic_mixed_moe_gemm_kernelLauncher<                                                \
      __nv_bfloat16, SafeFP4, __nv_bfloat16, tensorrt_llm::cutlass_extensions::EpilogueOpDefault,          \
      cute::Shape<cute::Int<m>, cute::Int<n>, cute::Int<k>>,                                               \
      cute::Shape<cute::Int<cluster_m>, cute::Int<cluster_n>, cute::Int<1>>,                               \
      cutlass::gemm::KernelTmaWarpSpecialized##schedule, cutlass::epilogue::TmaWarpSpecializedCooperative, \
      cutlass::WeightOnlyQuantOp::FINEGRAINED_SCALE_ONLY>(                                                 \
      GroupedGemmInput<__nv_bfloat16, SafeFP4, __nv_bfloat16, __nv_bfloat16>,                              \
      TmaWarpSpecializedGroupedGemmInput, int, size_t*);
#define JOIN(name, part) name##part
#define TILES_OF(part, tile) JOIN(SLUICE_FLASHINFER_TILES_, part)(tile)
TILES_OF(PART, TILE)

}  // namespace tensorrt_llm::kernels::cutlass_kernels_oss
