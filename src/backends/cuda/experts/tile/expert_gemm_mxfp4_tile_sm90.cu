// Expert GEMM for many rows per expert, mxfp4 weights: tiles of 192 or 384 weight rows x 16 to 192 rows of x (tiles.cuh), on a persistent
// grid. A configuration is one launch, or several launches that divide the experts by their number of rows. So a popular expert is not
// divided into many tiles, each of which would decode its weights again. Producer threads copy rows of tokens one by one, or an earlier
// launch copies them into order. CTA pairs instead load each row once for 384 weight rows, by one TMA box per row, or they gather rows
// into order while they multiply (tile_configs.cc).
//
// Wins    from 8 rows per expert on: each decoded weight serves all rows of a tile. A layer of gpt-oss-120b takes 421 us against 426
//         us of mxfp4_both_sm90 at 256 tokens, of gpt-oss-20b 203 us against 260 us at 512 (mxfp4_candidates.csv).
// Loses   to mxfp4_stream_sm90 up to 2 rows per expert, because SMs idle while the last tiles run: more than 358 us against 351 us at 64
//         tokens of gpt-oss-120b. To grouped_mlp_mxfp4_both_sm90 at 8 to 32 rows per expert of gpt-oss-20b.
// Limits  see supports(). Sums are never split, and all tiles sum in the same order, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/expert_gemm.h, the measurements are docs/lab/cuda-mxfp4.md.
#include "backends/cuda/experts/cost/cost.h"
#include "backends/cuda/experts/tile/tile_call.h"

namespace sluice::cuda {
namespace {

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_type(r, "w", p.w, DType::kE2M1, "decoded in registers");
  return r;
}

struct Launcher {
  static Status enqueue(const ExpertGemm::Problem&, std::span<const KernelLaunch>, const ExpertGemm::Args&,
                        Workspace, Stream);
};

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_tile_sm90 = {
    .name = "cuda.expert_gemm.mxfp4_tile_sm90",
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
  return enqueue_tiles(expert_gemm_mxfp4_tile_sm90.name, p, launches, a, w, stream);
}

}  // namespace

#endif

}  // namespace sluice::cuda
