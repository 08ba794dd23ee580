// Expert MLP for few tokens, mxfp4 weights: both products in one launch (fused_fewtokens.cuh).
//
// Wins    2 to 8 tokens of gpt-oss, 4 of DeepSeek V4 Flash (mxfp4_candidates.csv): 34.9 us against 39.7
//         us of mxfp4_stream_sm90 for 2 tokens of gpt-oss-120b, 96.2 us against 100.3 us for 8. The memory
//         pipeline fills once instead of twice, and no launch groups rows.
// Loses   to expert_mlp_mxfp4_slices_sm90 for one token of gpt-oss-120b (23.4 us against 22.0 us) and for two of V4 Flash (47.0 us
//         against 45.6 us). It refuses more slots than a warp can group by expert; expert_gemm_mxfp4_stream_sm90 accepts them.
// Limits  32 slots (tokens x slots per token), 64 if is_small(); see need_fewtokens() in experts/cards.h. Sums are split at the same k
//         for any batch, so the kernel is batch-invariant.
// Source  original; the contract is ops/fused/expert_mlp.h.
#include "backends/cuda/experts/fused/fewtokens_candidate.h"

namespace sluice::cuda {
namespace {

constexpr FewTokensData kData = {
    .name = "cuda.expert_mlp.mxfp4_fewtokens_sm90",
    .weights = DType::kE2M1,
    .why = "dequantised in registers",
    // Fitted to measurements on an H200 at 1 to 10 tokens of gpt-oss-20b, gpt-oss-120b, DeepSeek V4 Flash and
    // a tensor-parallel shard of V4 Pro. The error is up to 9% for one token of V4 Flash, otherwise up to 6%.
    .cost = {.begin_us = 11.9, .memory_share = 0.936},
};

}  // namespace

extern const Candidate<ExpertMlp> expert_mlp_mxfp4_fewtokens_sm90 = FewTokensCandidate<kData>::make();

}  // namespace sluice::cuda
