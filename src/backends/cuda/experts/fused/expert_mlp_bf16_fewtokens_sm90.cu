// The experts of few tokens, bf16 weights: both products in one launch (fused_fewtokens.cuh).
//
// Wins    few rows and small experts: one ramp in place of two, no launch that groups rows.
// Loses   to its stages where a warp cannot group the rows by expert: expert_gemm_bf16_stream_sm90.
// Limits  32 slots; see supports(). Sums are cut in the same places for any batch, so a row's bits do not depend on it.
// Source  original; the contract is ops/expert_mlp.h.
#include "backends/cuda/experts/cards.h"

namespace sluice::cuda {
namespace {

Refusal supports(const ExpertMlp::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_fewtokens(r, p, d);
  need_type(r, "w", p.w, DType::kBF16, "tensor core operand");
  return r;
}

// Fitted to a tensor-parallel part of Qwen3-235B, Qwen3-30B and an expert-parallel part of DeepSeek V3 at 1 to 4 tokens on an
// H200: within 6% of the time less 2.5 us, so one token of Qwen3-30B costs 24.0 us and takes 25.
double cost_us(const ExpertMlp::Problem& p, const DeviceInfo& d) {
  return fewtokens_us(p, d, {.begin_us = 10 - 2.5, .memory_share = 0.97});
}

struct Launcher {
  static Status enqueue(const ExpertMlp::Problem&, const ExpertMlp::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<ExpertMlp> expert_mlp_bf16_fewtokens_sm90 = {
    .name = "cuda.expert_mlp.bf16_fewtokens_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = fewtokens_workspace_bytes,
    .enqueue = enqueue_of<ExpertMlp, Launcher>(),
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/experts/fused/fused_fewtokens.cuh"

namespace sluice::cuda {
namespace {

Status Launcher::enqueue(const ExpertMlp::Problem& p, const ExpertMlp::Args& a, Workspace w, Stream stream) {
  return enqueue_fewtokens<Bf16Weights>(expert_mlp_bf16_fewtokens_sm90.name, ExpertMlp::with_f32_g(p), a, w,
                                        stream);
}

}  // namespace

}  // namespace sluice::cuda
#endif
