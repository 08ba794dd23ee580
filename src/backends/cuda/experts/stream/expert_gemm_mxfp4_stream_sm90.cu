// Expert GEMM for few rows per expert, mxfp4 weights. A unit of work is one row block of one expert's weights,
// over all of k (stream.cuh). Units this small spread few experts over many SMs, and no sum is split across SMs.
//
// With short sums (at most eight k blocks, or six with 16 columns), a team processes consecutive row blocks of one expert
// (stream_short.cuh). That kernel is issue-bound, so it sets up as much as possible once for all of these row blocks.
//
// stream_list.cuh defines the grid. In the last round the teams of a CTA share a unit (long sums only), at most one unit per CTA.
//
// Wins    up to 2 rows per expert of gpt-oss-120b (64 tokens: 351 us a layer against 357 us of
//         grouped_mlp_mxfp4_both_sm90), up to 4 of gpt-oss-20b (32 tokens: 111 us against 116 us;
//         mxfp4_candidates.csv). Weights arrive at the rate of a plain streaming read.
// Loses   for more rows to mxfp4_tile_sm90 and grouped_mlp_mxfp4_both_sm90, even if only popular experts have
//         more: an SM loads x again for every 64 rows of weights. For 2 to 8 tokens of gpt-oss, to
//         expert_mlp_mxfp4_fewtokens_sm90 by 4 to 5 us, because this kernel needs two launches.
// Limits  see supports() below. Sums are split at the same k for any batch, so the kernel is batch-invariant.
// Source  original; the contract is ops/expert_gemm.h.
#include "backends/cuda/experts/cards.h"
#include "backends/cuda/experts/cost/config.h"
#include "backends/cuda/experts/cost/cost.h"

namespace sluice::cuda {
namespace {

constexpr int64_t kShortOf8 = 8, kShortOf16 = 6;  // maximum number of k blocks of short sums

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_format(r, ExpertGemm::format(p), {DType::kE2M1}, "dequantised in registers");
  r.need(p.experts <= kListExpertsMax,
         "experts <= " + std::to_string(kListExpertsMax) + " (32 for each lane that counts)", "experts",
         p.experts);
  return r;
}

// Columns of a unit are rows of x.
constexpr int kColumns[] = {8, 16};

// True if the kernel for short sums runs.
bool has_short_sums(const ExpertGemm::Problem& p, int columns) {
  const int64_t k_blocks = ExpertGemm::fragments(p).k_blocks;
  return !is_gated(p.act) && k_blocks <= (columns == 8 ? kShortOf8 : kShortOf16);
}

// One configuration per number of columns. Even with a mean of a few rows per expert, hardly any expert has more than 8.
std::vector<Config> configs(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  std::vector<Config> out;
  for (const int columns : kColumns) {
    const StreamLaunch launch{.columns = columns, .short_sums = has_short_sums(p, columns)};
    out.push_back({.name = launch.name(p.w),
                   .cost_us = stream_cost_us(stream_constants(ExpertGemm::format(p)), p, d, launch),
                   .launches = {launch.launch()}});
  }
  return out;
}

struct Launcher {
  static Status enqueue(const ExpertGemm::Problem&, std::span<const KernelLaunch>, const ExpertGemm::Args&,
                        Workspace, Stream);
};

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_stream_sm90 = {
    .name = "cuda.expert_gemm.mxfp4_stream_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .enqueue_config = enqueue_config_of<ExpertGemm, Launcher>(),
    .launch_text = stream_launch_text,
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/experts/stream/stream_long.cuh"
#include "backends/cuda/experts/stream/stream_short.cuh"

namespace sluice::cuda {
namespace {

static_assert(is_short<8, Mxfp4Weights>(kShortOf8) && !is_short<8, Mxfp4Weights>(kShortOf8 + 1));
static_assert(is_short<16, Mxfp4Weights>(kShortOf16) && !is_short<16, Mxfp4Weights>(kShortOf16 + 1));

template <int N>
Status enqueue_stream(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, bool short_sums,
                      Stream stream) {
  const ExpertParameters parameters = expert_parameters(p, a);
  if (short_sums)
    return launch_short<N, Mxfp4Weights>(expert_gemm_mxfp4_stream_sm90.name, parameters, stream);
  return launch_long<N, Mxfp4Weights>(expert_gemm_mxfp4_stream_sm90.name, is_gated(p.act), parameters,
                                      stream);
}

Status Launcher::enqueue(const ExpertGemm::Problem& p, std::span<const KernelLaunch> launches,
                         const ExpertGemm::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  const StreamLaunch launch = StreamLaunch::of(launches[0]);
  return launch.columns == 8 ? enqueue_stream<8>(p, a, launch.short_sums, stream)
                             : enqueue_stream<16>(p, a, launch.short_sums, stream);
}

}  // namespace

}  // namespace sluice::cuda
#endif
