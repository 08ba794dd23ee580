// Expert GEMM for many rows per expert, mxfp4 weights: tiles of 192 or 384 weight rows x up to 192 rows of x (tiles.cuh), on a
// persistent grid. A configuration is one launch, or several that divide the experts by their number of rows, so that a popular
// expert gets wide tiles instead of many narrow ones, which would decode its weights again each. Rows of tokens reach shared
// memory in one of four ways (tile_configs.cc): producer threads copy them; an earlier launch copies them into y's order; CTA
// pairs load each row once for 384 weight rows, one TMA box per row; or CTA pairs copy them into y's order while they multiply.
//
// Wins    from 64 rows per expert on, and for gpt-oss-120b also at 8 and 16 rows: each decoded weight is
//         multiplied by all rows of a tile. A layer of gpt-oss-20b at 512 tokens takes 203.2 us against 260.1 us of
//         grouped_mlp_mxfp4_both_sm90; a layer of gpt-oss-120b at 256 tokens takes 420.5 us against 425.5 us
//         (mxfp4_candidates.csv).
// Loses   up to 4 rows per expert to mxfp4_stream_sm90, because SMs idle while the last tiles run: 360.5 us
//         against 351.3 us at 64 tokens of gpt-oss-120b. To grouped_mlp_mxfp4_both_sm90 at 8 to 32 rows per
//         expert of gpt-oss-20b (127.8 us against 119.8 us at 64 tokens) and at 32 rows per expert of
//         gpt-oss-120b (549.6 us against 543.4 us at 1024 tokens).
// Limits  see supports() in tile_candidate.h. Sums are never split and always added in the same order, so the kernel is batch-invariant.
// Source  original; the contract is ops/expert_gemm.h, the measurements are docs/lab/cuda-mxfp4.md.
#include "backends/cuda/experts/tile/tile_candidate.h"

namespace sluice::cuda {
namespace {

constexpr TileKernelData kData = {
    .name = "cuda.expert_gemm.mxfp4_tile_sm90", .weights = {DType::kE2M1}, .why = "decoded in registers"};

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_tile_sm90 = TileCandidate<kData>::make();

}  // namespace sluice::cuda
