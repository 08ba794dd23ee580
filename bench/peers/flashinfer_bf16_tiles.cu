// One part of FlashInfer's bf16 GEMMs, compiled with -DPART=0 to 8: the Hopper tiles of SLUICE_FLASHINFER_TILES_<PART>; part 0 has the
// Ampere tiles, with silu(gate) * up.
#include "flashinfer_bf16_tiles.h"

#if PART > 0
#include "tensorrt_llm/kernels/cutlass_kernels/moe_gemm/launchers/moe_gemm_tma_ws_launcher.inl"

namespace tensorrt_llm {
namespace kernels {
namespace cutlass_kernels_oss {

#define TILE(swap, fusion, m, n, cluster_m, cluster_n)                                                    \
  INSTANTIATE_TMA_WARP_SPECIALIZED_MOE_GEMM(Sm90, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, void,      \
                                            EpilogueOpDefault, fusion, m, n, 64, cluster_m, cluster_n, 1, \
                                            false, false, false, swap)
#define JOIN(name, part) name##part
#define TILES_OF(part, tile) JOIN(SLUICE_FLASHINFER_TILES_, part)(tile)
TILES_OF(PART, TILE)

}  // namespace cutlass_kernels_oss
}  // namespace kernels
}  // namespace tensorrt_llm
#else
#include "tensorrt_llm/kernels/cutlass_kernels/moe_gemm/launchers/fused_moe_gemm_launcher_sm80.inl"

namespace tensorrt_llm::kernels::cutlass_kernels_oss {

#define TILE(rows, stages)                                                                      \
  template void sm80_generic_fused_moe_gemm_kernelLauncher<                                     \
      cutlass::bfloat16_t, cutlass::bfloat16_t, rows, 128, 64, stages,                          \
      tensorrt_llm::cutlass_extensions::EpilogueOpDefaultSilu>(                                 \
      const cutlass::bfloat16_t*, const cutlass::bfloat16_t*, const cutlass::bfloat16_t*, bool, \
      cutlass::bfloat16_t*, const int64_t*, int64_t, int64_t, int64_t, int, int, cudaStream_t, int*);
SLUICE_FLASHINFER_AMPERE_TILES(TILE)

}  // namespace tensorrt_llm::kernels::cutlass_kernels_oss
#endif
