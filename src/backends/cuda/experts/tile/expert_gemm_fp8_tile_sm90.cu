// Expert GEMM for many rows per expert with rows of x rounded to FP8 (fp8_x of ops/expert_gemm.h): one launch rounds them
// (quantize_rows.cu), then tiles of 192 weight rows x up to 160 rows of x, or 256 x 256 by CTA pairs (tiles.cuh), multiply them on the
// tensor cores in FP8, at twice the rate of bf16. mxfp4 weights become e5m2 in registers, exactly; e4m3 weights are operands as they
// are. The packed weights are the same as for the other kernels.
//
// Wins    where products rather than bytes take the time: from about 100 rows per expert on with mxfp4 weights, which threads decode, and
//         from about 50 with e4m3 weights.
// Loses   for fewer rows to the kernels that keep x in bf16, because the weights' bytes take the time and the rounding is one launch more.
// Limits  see supports() in tile_candidate.h. Sums are never split and always added in the same order, so the kernel is batch-invariant.
// Source  original; the contract is ops/expert_gemm.h, the measurements are docs/lab/cuda-fp8-activations.md.
#include "backends/cuda/experts/tile/tile_candidate.h"

namespace sluice::cuda {
namespace {

constexpr TileKernelData kMxfp4 = {.name = "cuda.expert_gemm.mxfp4_fp8_tile_sm90",
                                   .weights = {DType::kE2M1},
                                   .why = "decoded to e5m2",
                                   .fp8 = true};
constexpr TileKernelData kFp8Blocks = {.name = "cuda.expert_gemm.fp8_blocks_fp8_tile_sm90",
                                       .weights = {DType::kE4M3, WeightScales::kBlocks},
                                       .why = "tensor core operands",
                                       .fp8 = true};
constexpr TileKernelData kFp8Rows = {.name = "cuda.expert_gemm.fp8_rows_fp8_tile_sm90",
                                     .weights = {DType::kE4M3, WeightScales::kRows},
                                     .why = "tensor core operands",
                                     .fp8 = true};

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_fp8_tile_sm90 = TileCandidate<kMxfp4>::make();
extern const Candidate<ExpertGemm> expert_gemm_fp8_blocks_fp8_tile_sm90 = TileCandidate<kFp8Blocks>::make();
extern const Candidate<ExpertGemm> expert_gemm_fp8_rows_fp8_tile_sm90 = TileCandidate<kFp8Rows>::make();

}  // namespace sluice::cuda
