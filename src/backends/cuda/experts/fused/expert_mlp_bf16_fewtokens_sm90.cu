// Expert MLP for few tokens, bf16 weights: both products in one launch (fused_fewtokens.cuh).
//
// Wins    up to 4 tokens of small experts (bf16_candidates.csv): 25.9 us against 29.6 us of bf16_stream_sm90
//         for one token of Qwen3-30B-A3B, 72.7 us against 74.4 us for 4. The memory pipeline fills once
//         instead of twice, and no launch groups rows.
// Loses   nowhere in bf16_candidates.csv. It refuses more than 32 slots (tokens x slots per token), which the unfused
//         kernels compute (expert_gemm_bf16_stream_sm90).
// Limits  32 slots; see need_fewtokens() in experts/cards.h. Sums are split at the same k for any batch, so it is batch-invariant.
// Source  original; the contract is ops/fused/expert_mlp.h.
#include "backends/cuda/experts/fused/fewtokens_candidate.h"

namespace sluice::cuda {
namespace {

constexpr FewTokensData kData = {
    .name = "cuda.expert_mlp.bf16_fewtokens_sm90",
    .weights = DType::kBF16,
    .why = "tensor core operand",
    // Fitted to measurements on an H200 at 1 to 4 tokens of a tensor-parallel shard of Qwen3-235B, of
    // Qwen3-30B and of an expert-parallel shard of DeepSeek V3. The cost is within 6% of the measured
    // time minus 2.5 us: for one token of Qwen3-30B it is 24.0 us, and the kernel takes 25 us.
    .cost = {.begin_us = 10 - 2.5, .memory_share = 0.97},
};

}  // namespace

extern const Candidate<ExpertMlp> expert_mlp_bf16_fewtokens_sm90 = FewTokensCandidate<kData>::make();

}  // namespace sluice::cuda
