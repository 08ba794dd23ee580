// Expert GEMM for many rows an expert, mxfp4 weights: tiles of 192 or 384 weight rows x 16 to 192 rows of x
// (tiles.cuh), on a persistent grid. A configuration is one launch, or several that share the experts by
// their number of rows, so that a popular expert is not divided into many tiles, each of which decodes its
// weights again. Rows of tokens are copied one by one by producer threads, or copied into order by an earlier
// launch. CTA pairs instead load each row once for 384 weight rows: by one TMA box a row, or they gather rows
// into order while they multiply (tile_configs.cc).
//
// Wins    more than a few rows an expert: each decoded weight serves all rows of a tile.
// Loses   fewer rows: SMs idle while the last tiles run. See mxfp4_stream_sm90.
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
