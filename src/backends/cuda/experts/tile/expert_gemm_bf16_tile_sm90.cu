// Expert GEMM for many rows per expert, bf16 weights. wgmma reads both operands from shared memory. A CTA has tiles of 256
// weight rows x 64 to 128 rows of x. The CTAs of a pair share one operand: either rows of x, and each CTA has its own weight
// rows, or weights, and each CTA has its own rows of x (tiles.cuh). Rows of tokens are copied as for mxfp4 (tile_configs.cc).
//
// Wins    from about 26 rows per expert on: each loaded weight serves all rows of its expert. 512 tokens of Qwen3-30B-A3B (32 rows per
//         expert) take 309 us a layer against 323 us of bf16_stream_sm90 (bf16_candidates.csv).
// Loses   to bf16_stream_sm90 below: SMs idle while the last tiles run. 128 tokens (8 rows per expert) take 294 us against 287 us.
// Limits  see supports(). Sums are never split, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/expert_gemm.h, the measurements are docs/lab/cuda-bf16-experts.md.
#include "backends/cuda/experts/cost/cost.h"
#include "backends/cuda/experts/tile/tile_call.h"

namespace sluice::cuda {
namespace {

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_type(r, "w", p.w, DType::kBF16, "wgmma operand");
  return r;
}

struct Launcher {
  static Status enqueue(const ExpertGemm::Problem&, std::span<const KernelLaunch>, const ExpertGemm::Args&,
                        Workspace, Stream);
};

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_bf16_tile_sm90 = {
    .name = "cuda.expert_gemm.bf16_tile_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = tile_configs,
    .enqueue_config = enqueue_config_of<ExpertGemm, Launcher>(),
    .launch_text = tile_launch_text,
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

#if defined(__CUDACC__)

namespace {

Status Launcher::enqueue(const ExpertGemm::Problem& p, std::span<const KernelLaunch> launches,
                         const ExpertGemm::Args& a, Workspace w, Stream stream) {
  return enqueue_tiles(expert_gemm_bf16_tile_sm90.name, p, launches, a, w, stream);
}

}  // namespace

#endif

}  // namespace sluice::cuda
