// Expert GEMM for many rows per expert, FP8, MXFP8 and NVFP4 weights: tiles of 192 weight rows
// x up to 160 rows of x (tiles.cuh) on a persistent grid, as in expert_gemm_mxfp4_tile_sm90.
// Codes are decoded to bf16 in registers, so x is not rounded. With block scales the sums are
// rescaled before each k block, one multiplication per sum and 64 values of k.
//
// Wins    from about 16 rows per expert on: each decoded weight is multiplied by all rows of a tile.
// Loses   to expert_gemm_scaled_stream_sm90 for fewer rows, because SMs idle while the last tiles run.
// Limits  see supports() in tile_candidate.h. Sums are never split and always added in the same order, so the kernel is batch-invariant.
// Source  original; the contract is ops/expert_gemm.h, the measurements are docs/lab/cuda-formats.md.
#include "backends/cuda/experts/tile/tile_candidate.h"

namespace sluice::cuda {
namespace {

constexpr WeightFormat kE4M3{DType::kE4M3}, kBlocks{DType::kE4M3, WeightScales::kBlocks},
    kRows{DType::kE4M3, WeightScales::kRows}, kNv{DType::kE2M1, WeightScales::kNv};
constexpr TileKernelData kMxfp8 = {
    .name = "cuda.expert_gemm.mxfp8_tile_sm90", .weights = kE4M3, .why = "decoded in registers"};
constexpr TileKernelData kFp8Blocks = {
    .name = "cuda.expert_gemm.fp8_blocks_tile_sm90", .weights = kBlocks, .why = "decoded in registers"};
constexpr TileKernelData kFp8Rows = {
    .name = "cuda.expert_gemm.fp8_rows_tile_sm90", .weights = kRows, .why = "decoded in registers"};
constexpr TileKernelData kNvfp4 = {
    .name = "cuda.expert_gemm.nvfp4_tile_sm90", .weights = kNv, .why = "decoded in registers"};

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_mxfp8_tile_sm90 = TileCandidate<kMxfp8>::make();
extern const Candidate<ExpertGemm> expert_gemm_fp8_blocks_tile_sm90 = TileCandidate<kFp8Blocks>::make();
extern const Candidate<ExpertGemm> expert_gemm_fp8_rows_tile_sm90 = TileCandidate<kFp8Rows>::make();
extern const Candidate<ExpertGemm> expert_gemm_nvfp4_tile_sm90 = TileCandidate<kNvfp4>::make();

}  // namespace sluice::cuda
