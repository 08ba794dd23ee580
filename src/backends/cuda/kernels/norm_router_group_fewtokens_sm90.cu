// The norm of few tokens, router GEMM, choice and rows by expert in one launch (router_route_fewtokens.cuh).
//
// Wins    gpt-oss's layers whose experts want rows that are grouped: one launch in place of three.
// Loses   more tokens, to the parts: each tile of 8 or 16 tokens loads the router's weights again, and one CTA groups them all.
// Limits  as norm_router_route_fewtokens_sm90, but 128 tokens where clusters choose; no shared slots, no list of tiles, row_align of 1.
//         Rows of x or normed that are not 16-byte aligned are normed by a launch of their own. A row's bits do not depend on the batch.
// Source  original; the contract is ops/norm_router_group.h.
#include "ops/norm_router_group.h"

#include "backends/cuda/kernels/router_route_fewtokens.h"

namespace sluice::cuda {
namespace {

using Problem = NormRouterGroup::Problem;

Refusal supports(const Problem& p, const DeviceInfo& d) {
  Refusal r;
  const RouterRoute::Problem& router = p.front.router;
  few::need_few(r, router, d, few::kTokensInClusters);
  need_type(r, "norm_w", p.front.norm_w, DType::kBF16, "multiplies operands of the tensor cores");
  const few::Instance* i = few::instance_for(router, few::kTokensInClusters);
  r.need(!i || i->kind == tile::kSoftmaxOfChosen, "a softmax over the chosen",
         "method=" + std::string(word(router.route.method)));
  r.need(router.route.shared_slots == 0, "shared_slots=0", "shared_slots", router.route.shared_slots);
  r.need(p.row_align == 1, "row_align=1", "row_align", p.row_align);
  r.need(p.tile_rows == 0, "tile_rows=0 (no list of tiles)", "tile_rows", p.tile_rows);
  return r;
}

// By arithmetic: norm_router_route_fewtokens_sm90, and behind it one trip of the ids through memory, masks and a scan. Steps of 16 to 128
// sequences say that it is not slower than the parts (docs/notes/cuda-step-launches.md).
double cost_us(const Problem& p, const DeviceInfo&) {
  constexpr double kNormUs = 0.4, kGroupUs = 0.9;
  return few::few_us(p.front.router, few::kTokensInClusters) + kNormUs + kGroupUs;
}

struct Launcher {
  static Status enqueue(const Problem&, const NormRouterGroup::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<NormRouterGroup> norm_router_group_fewtokens_sm90 = {
    .name = "cuda.norm_router_group.fewtokens_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<NormRouterGroup>,
    .enqueue = enqueue_of<NormRouterGroup, Launcher>(),
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include <array>
#include <utility>

#include "backends/cuda/kernels/router_route_fewtokens.cuh"
#include "backends/cuda/wide_rows.h"

namespace sluice::cuda {

extern const Candidate<RmsNorm> rms_norm_rows_sm90;

namespace {

static_assert(few::kTokensInClusters <= int64_t{tile::kGroupedTokensMost});

using Kernel = void (*)(few::Few);
// The kernels of each of kInstances: with the norm, and behind one.
struct Kernels {
  Kernel normed = nullptr, any_rows = nullptr;
};
template <size_t kIndex>
constexpr Kernels kernels_at() {
  if constexpr (few::kInstances[kIndex].kind == tile::kSoftmaxOfChosen) {
    return {few::kernel_of<kIndex, few::Input::kNormed, few::Output::kGroups>(),
            few::kernel_of<kIndex, few::Input::kAnyRows, few::Output::kGroups>()};
  } else {
    return {};  // supports() refuses its problems
  }
}
template <size_t... kIndex>
constexpr std::array<Kernels, sizeof...(kIndex)> kernels(std::index_sequence<kIndex...>) {
  return {kernels_at<kIndex>()...};
}
constexpr auto kKernels = kernels(std::make_index_sequence<std::size(few::kInstances)>());

Status Launcher::enqueue(const Problem& p, const NormRouterGroup::Args& a, Workspace, Stream stream) {
  const RouterRoute::Problem& router = p.front.router;
  const bool apart = !wide_rows(a.x) || !wide_rows(a.normed);
  const few::Instance& i = *few::instance_for(router, few::kTokensInClusters);
  const Kernels& kernels = kKernels[static_cast<size_t>(&i - few::kInstances)];
  few::Few few = few::few_of(router, apart ? NormRouterRoute::router(a) : RouterRoute::Args(a), i, stream);
  few.groups = {.words = few.grid_words + router.route.tokens * i.cut.split * (i.experts + few::kSquareWords),
                .row_count = a.row_count.as<int32_t>(),
                .row_begin = a.row_begin.as<int32_t>(),
                .order = a.order.as<int32_t>(),
                .position = a.position.as<int32_t>()};
  if (apart) {
    SLUICE_TRY(
        rms_norm_rows_sm90.enqueue(NormRouterRoute::norm(p.front), NormRouterRoute::norm(a), {}, stream));
  } else {
    few.norm = {.weight = a.norm_weight.as<const few::Bf16>(),
                .normed = a.normed.as<few::Bf16>(),
                .stride = a.normed.stride[0],
                .eps = static_cast<float>(p.front.eps)};
  }
  return launch(norm_router_group_fewtokens_sm90.name, apart ? kernels.any_rows : kernels.normed,
                few::launch_of(few, i), stream, few);
}

}  // namespace
}  // namespace sluice::cuda
#endif
