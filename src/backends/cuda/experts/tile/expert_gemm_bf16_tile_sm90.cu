// Expert GEMM for many rows per expert, bf16 weights. wgmma reads both operands from shared memory. A CTA computes 128
// or 256 weight rows x up to 256 rows of x. CTA pairs share one operand: rows of x, with different weight rows per CTA,
// or weights, with different rows of x per CTA (tiles.cuh). Rows of tokens are copied as for mxfp4 (tile_configs.cc).
//
// Wins    from about 26 rows per expert on: each loaded weight is multiplied by all rows of its expert. 512 tokens of Qwen3-30B-A3B
//         (32 rows per expert) take 309 us a layer against 323 us of bf16_stream_sm90 (bf16_candidates.csv).
// Loses   for fewer rows to bf16_stream_sm90, because SMs idle while the last tiles run: 128 tokens (8 rows
//         per expert) take 294 us against 287 us.
// Limits  see supports() in tile_candidate.h. Sums are never split, so the kernel is batch-invariant.
// Source  original; the contract is ops/expert_gemm.h, the measurements are docs/lab/cuda-bf16-experts.md.
#include "backends/cuda/experts/tile/tile_candidate.h"

namespace sluice::cuda {
namespace {

constexpr TileKernelData kData = {
    .name = "cuda.expert_gemm.bf16_tile_sm90", .weights = {}, .why = "wgmma operand"};

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_bf16_tile_sm90 = TileCandidate<kData>::make();

}  // namespace sluice::cuda
