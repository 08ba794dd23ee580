// Expert GEMM for many rows an expert, bf16 weights. wgmma reads both operands from shared memory. One CTA
// has tiles of 256 weight rows x 64 to 128 rows of x. CTA pairs share what both multiply: either rows of x, and
// each CTA has its own weight rows, or weights, and each has its own rows of x (tiles.cuh). Rows of tokens are
// copied as for mxfp4 (tile_configs.cc).
//
// Wins    more than about 26 rows an expert: each weight that is read serves all rows of its expert.
// Loses   fewer rows: SMs idle while the last tiles run. See bf16_stream_sm90.
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
