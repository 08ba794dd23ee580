// Expert GEMM for few rows per expert, bf16 weights: tiles of 128 or 64 weight rows x up to 32 rows of x, each over all
// of k (experts/tile/tiles.cuh). Tiles this small spread few experts over many SMs, and no sum is split across SMs.
//
// wgmma reads both operands from shared memory. It multiplies a 64 x 64 block of weights by 8 columns
// in a sixth of the time in which the block arrives from memory, with four instructions per warp.
//
// Short sums (at most four k blocks, not gated) would leave such a tile with little but prologue and epilogue.
// For them a team instead processes consecutive row blocks of one expert and uses mma.sync (stream_short.cuh).
//
// Wins    up to about 26 rows per expert: weights arrive at the rate of a plain streaming read. 512 tokens of
//         Nemotron 3 Nano (24 rows per expert) take 611 us a layer against 616 us of bf16_tile_sm90
//         (bf16_candidates.csv).
// Loses   for more rows to bf16_tile_sm90, because weights are loaded again for every 32 rows: 512 tokens of
//         Qwen3-30B-A3B (32 rows per expert) take 323 us against 309 us. For one to four tokens, to
//         expert_mlp_bf16_fewtokens_sm90.
// Limits  see supports() below. Sums are never split, so the kernel is batch-invariant.
// Source  original; the contract is ops/expert_gemm.h. The cost follows from the memory rate.
#include "backends/cuda/experts/cards.h"
#include "backends/cuda/experts/cost/config.h"
#include "backends/cuda/experts/cost/cost.h"

namespace sluice::cuda {
namespace {

constexpr int kShortMax = 32;        // maximum rows of x per unit of short sums
constexpr int kRowsMax = 32;         // maximum rows of x per tile
constexpr int64_t kShortBlocks = 4;  // maximum number of k blocks of short sums

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_format(r, ExpertGemm::format(p), {}, "wgmma operand");
  return r;
}

// True if the kernel for short sums runs (stream_short.cuh). It adds in another order, so
// for batch invariance the choice must depend on the shape alone, not on the number of rows.
bool has_short_sums(const ExpertGemm::Problem& p) {
  return !is_gated(p.act) && ExpertGemm::fragments(p).k_blocks <= kShortBlocks &&
         p.experts <= kListExpertsMax;
}

// With short sums, one configuration per number of columns (rows of x per unit); otherwise one per CTA size.
std::vector<Config> configs(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  std::vector<Config> out;
  const auto add = [&](StreamLaunch launch) {
    const int64_t threads = launch.small ? 256 : 384;
    if (p.experts > threads || p.rows / kRowsMax + p.experts > UINT16_MAX)
      launch.order = ExpertOrder::kLong;  // for more experts or tiles than a CTA can count in one pass
    out.push_back({.name = launch.name(p.w),
                   .cost_us = stream_cost_us(stream_constants(ExpertGemm::format(p)), p, d, launch),
                   .launches = {launch.launch()}});
  };
  if (has_short_sums(p)) {
    for (const int columns : {8, 16, kShortMax}) add({.columns = columns, .short_sums = true});
  } else {
    for (const bool small : {true, false}) add({.columns = kRowsMax, .small = small});
  }
  return out;
}

struct Launcher {
  static Status enqueue(const ExpertGemm::Problem&, std::span<const KernelLaunch>, const ExpertGemm::Args&,
                        Workspace, Stream);
};

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_bf16_stream_sm90 = {
    .name = "cuda.expert_gemm.bf16_stream_sm90",
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
#include "backends/cuda/experts/stream/stream_short.cuh"
#include "backends/cuda/experts/tile/launch_tiles.cuh"

namespace sluice::cuda {
namespace {

static_assert(is_short<kShortMax, Bf16Weights>(kShortBlocks));
// Two warpgroups with one row block each; or one warpgroup and two CTAs per SM, which makes twice as many tiles, for few experts.
using TwoGroups = ExpertTiles<Bf16Blocks, TileKernel{128, 16, 16, 32, 2, XSource::kThreads}>;
using OneGroup = ExpertTiles<Bf16Blocks, TileKernel{64, 16, 16, 32, 2, XSource::kThreads}, 2>;

Status Launcher::enqueue(const ExpertGemm::Problem& p, std::span<const KernelLaunch> launches,
                         const ExpertGemm::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  const std::string_view name = expert_gemm_bf16_stream_sm90.name;
  const StreamLaunch launch = StreamLaunch::of(launches[0]);
  if (!launch.short_sums) {
    const TileCall call{name, p, a, stream, {.order = launch.order}, nullptr};
    return launch.small ? launch_tiles<OneGroup>(call) : launch_tiles<TwoGroups>(call);
  }
  const ExpertParameters parameters = expert_parameters(p, a);
  return launch.columns == 8    ? launch_short<8, Bf16Weights>(name, parameters, stream)
         : launch.columns == 16 ? launch_short<16, Bf16Weights>(name, parameters, stream)
                                : launch_short<kShortMax, Bf16Weights>(name, parameters, stream);
}

}  // namespace

}  // namespace sluice::cuda

#endif
