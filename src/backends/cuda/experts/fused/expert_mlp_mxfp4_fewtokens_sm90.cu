// Expert MLP for few tokens, mxfp4 weights: both products in one launch (fused_fewtokens.cuh).
//
// Wins    2 to 8 tokens of gpt-oss, up to 4 of DeepSeek V4 Flash (mxfp4_candidates.csv): 34.9 us against 39.7
//         us of mxfp4_stream_sm90 for 2 tokens of gpt-oss-120b, 96.2 us against 100.3 us for 8. The memory
//         pipeline fills once instead of twice, and no launch groups rows.
// Loses   for one token to expert_mlp_mxfp4_slices_sm90: 23.4 us against 22.0 us. It refuses more slots than
//         a warp can group by expert: the unfused kernels (expert_gemm_mxfp4_stream_sm90) take those.
// Limits  32 slots, 64 for small slices; see supports(). Sums are cut in the same places for any batch, so a row's bits do not
//         depend on the batch.
// Source  original; the contract is ops/expert_mlp.h.
#include "backends/cuda/experts/fused/fewtokens_candidate.h"

namespace sluice::cuda {
namespace {

constexpr FewTokensData kData = {
    .name = "cuda.expert_mlp.mxfp4_fewtokens_sm90",
    .weights = DType::kE2M1,
    .why = "dequantised in registers",
    // Fitted to measurements on an H200 at 1 to 10 tokens of gpt-oss-20b, gpt-oss-120b, DeepSeek V4 Flash and
    // a tensor-parallel shard of V4 Pro. Within 9% for one token of V4 Flash, within 6% otherwise.
    .cost = {.begin_us = 11.9, .memory_share = 0.936},
};

}  // namespace

extern const Candidate<ExpertMlp> expert_mlp_mxfp4_fewtokens_sm90 = FewTokensCandidate<kData>::make();

}  // namespace sluice::cuda
