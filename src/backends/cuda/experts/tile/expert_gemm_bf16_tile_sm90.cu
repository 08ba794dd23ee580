// Expert GEMM for many rows per expert, bf16 weights. wgmma reads both operands from shared memory. A CTA has tiles of 256
// weight rows x 64 to 128 rows of x. The CTAs of a pair share one operand: either rows of x, and each CTA has its own weight
// rows, or weights, and each CTA has its own rows of x (tiles.cuh). Rows of tokens are copied as for mxfp4 (tile_configs.cc).
//
// Wins    from about 26 rows per expert on: each loaded weight serves all rows of its expert. 512 tokens of Qwen3-30B-A3B (32 rows per
//         expert) take 309 us a layer against 323 us of bf16_stream_sm90 (bf16_candidates.csv).
// Loses   for fewer rows to bf16_stream_sm90, because SMs idle while the last tiles run: 128 tokens (8 rows
//         per expert) take 294 us against 287 us.
// Limits  see supports(). Sums are never split, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/expert_gemm.h, the measurements are docs/lab/cuda-bf16-experts.md.
#include "backends/cuda/experts/tile/tile_candidate.h"

namespace sluice::cuda {
namespace {

constexpr TileKernelData kData = {
    .name = "cuda.expert_gemm.bf16_tile_sm90", .weights = {}, .why = "wgmma operand"};

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_bf16_tile_sm90 = TileCandidate<kData>::make();

}  // namespace sluice::cuda
