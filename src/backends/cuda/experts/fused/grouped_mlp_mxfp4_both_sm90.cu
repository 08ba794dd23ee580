// Both products for rows grouped by expert, mxfp4 weights, in one launch of tiles of 384 weight rows x up to 56 rows of x (grouped_tiles.cuh).
//
// Wins    8 to 32 rows per expert of gpt-oss-20b, 4 and 32 of gpt-oss-120b (mxfp4_candidates.csv): 120 us a
//         layer against 128 us of mxfp4_tile_sm90 at 64 tokens of gpt-oss-20b. The second product starts on
//         SMs that would idle at the end of the first, and there is one launch less. h stays in L2.
// Loses   for more rows to mxfp4_tile_sm90, which has wider tiles and loads rows of x by TMA: 260 us against
//         203 us at 512 tokens of gpt-oss-20b (64 rows per expert). For fewer rows, to mxfp4_stream_sm90: 105
//         us against 98 us at 16 tokens.
// Limits  see supports() below. Sums are bitwise equal to those of mxfp4_tile_sm90.
// Source  original; the contract is ops/fused/grouped_mlp.h, the measurements are docs/lab/cuda-grouped-tiles.md.
#include <algorithm>
#include <array>

#include "backends/cuda/experts/cards.h"
#include "ops/fused/grouped_mlp.h"

namespace sluice::cuda {
namespace {

// The entries of kMxfp4Tiles with 384 weight rows and rows of x copied by threads. They are adjacent.
constexpr bool is_taken(const TileKernel& k) { return k.x == XSource::kThreads && k.tile_m == 384; }
constexpr int kFirstRow =
                  static_cast<int>(std::ranges::find_if(kMxfp4Tiles, is_taken) - std::begin(kMxfp4Tiles)),
              kRowCount = static_cast<int>(std::ranges::count_if(kMxfp4Tiles, is_taken));
static_assert(kRowCount > 0 &&
              std::ranges::all_of(std::span(kMxfp4Tiles).subspan(kFirstRow, kRowCount), is_taken));

Refusal supports(const GroupedMlp::Problem& p, const DeviceInfo& d) {
  Refusal r;
  const ExpertMlp::Problem& m = p.mlp;
  need_expert_blocks(r, GroupedMlp::up(p), d);
  need_format(r, {m.w, m.scales}, {DType::kE2M1}, "decoded in registers");
  need_type(r, "g", m.g, DType::kBF16, "stored 16 bytes at a time");
  need_multiple(r, "intermediate", m.intermediate, 8, "copies of 16 bytes");
  r.need(m.act == Activation::kSwiGlu || m.act == Activation::kSwiGluClamped, "act swiglu or swiglu_clamped",
         "act=" + std::string(word(m.act)));
  r.need(!m.weight_on_input, "weight_on_input=0", "weight_on_input=1");
  r.need(!m.x_unaligned, "x_unaligned=0 (copies of 16 bytes)", "x_unaligned=1");
  r.need(m.experts <= GroupedLaunch::kExpertsMax,
         "experts <= " + std::to_string(GroupedLaunch::kExpertsMax) + " (a thread each)", "experts",
         m.experts);
  constexpr int64_t kTilesMax = UINT16_MAX;  // per row block of weights
  r.need(GroupedMlp::rows(p) / 8 + m.experts <= kTilesMax, "at most 65535 tiles along rows of x",
         "tokens * slots", GroupedMlp::rows(p));
  return r;
}

std::vector<Config> configs(const GroupedMlp::Problem& p, const DeviceInfo& d) {
  std::vector<Config> out;
  const ExpertGemm::Problem up = GroupedMlp::up(p);
  for (int row = kFirstRow; row < kFirstRow + kRowCount; ++row) {
    Config one;
    const TileKernel& k = kMxfp4Tiles[row];
    one.name = std::to_string(k.tile_m) + "x" + std::to_string(k.n_max);
    one.launches.push_back(GroupedLaunch{.kernel = row, .order = expert_order(up, k)}.launch());
    one.cost_us = grouped_tiles_cost_us(p, d, row);
    one.workspace_bytes =
        static_cast<size_t>(bytes_of(DType::kBF16, GroupedMlp::rows(p) * p.mlp.intermediate));
    out.push_back(std::move(one));
  }
  return out;
}

std::string launch_text(const GroupedMlp::Problem&, const KernelLaunch& of) {
  const GroupedLaunch launch = GroupedLaunch::of(of);
  const TileKernel& k = kMxfp4Tiles[launch.kernel];
  std::string out = "tiles of " + std::to_string(k.tile_m) + " x " + std::to_string(k.n_min) + " to " +
                    std::to_string(k.n_max) +
                    " of gate and up, then of down; rows of x and h by producer threads";
  if (launch.order == ExpertOrder::kByWidth) out += "; the widest tiles first";
  return out;
}

struct Launcher {
  static Status enqueue(const GroupedMlp::Problem&, std::span<const KernelLaunch>, const GroupedMlp::Args&,
                        Workspace, Stream);
};

}  // namespace

extern const Candidate<GroupedMlp> grouped_mlp_mxfp4_both_sm90 = {
    .name = "cuda.grouped_mlp.mxfp4_both_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .enqueue_config = enqueue_config_of<GroupedMlp, Launcher>(),
    .launch_text = launch_text,
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/experts/fused/grouped_tiles.cuh"

namespace sluice::cuda {
namespace {

template <int... kRow>
constexpr auto launchers(std::integer_sequence<int, kRow...>) {
  return std::array{grouped::launch_tiles<kFirstRow + kRow>...};
}

Status Launcher::enqueue(const GroupedMlp::Problem& p, std::span<const KernelLaunch> launches,
                         const GroupedMlp::Args& a, Workspace w, Stream stream) {
  if (GroupedMlp::rows(p) == 0) return {};
  constexpr auto kLaunchers = launchers(std::make_integer_sequence<int, kRowCount>());
  const GroupedLaunch launch = GroupedLaunch::of(launches[0]);
  return kLaunchers[static_cast<size_t>(launch.kernel - kFirstRow)](grouped_mlp_mxfp4_both_sm90.name, p, a, w,
                                                                    launch, stream);
}

}  // namespace
}  // namespace sluice::cuda
#endif
