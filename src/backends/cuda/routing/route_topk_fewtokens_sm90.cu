
// Top-k routing for few tokens: one CTA per token, one thread per expert (tile/few_tokens.cuh).
//
// Wins    1 to 128 tokens: after the same router GEMM, 0.14 to 1.1 us faster than route_topk_warp_sm90 (plain launches,
//         router_candidates.csv).
// Loses   to route_topk_warp_sm90 by up to 0.9 us in some dependent launches of 64 tokens and more. It refuses more than 132 tokens.
// Limits  the requirements of need_team() (tile/team.h).
// Source  original; the contract is ops/route_topk.h.
#include "backends/cuda/card.h"
#include "backends/cuda/tile/team.h"

namespace sluice::cuda {
namespace {

using Problem = RouteTopk::Problem;
constexpr int kTokensMax = 132;

Refusal supports(const Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  tile::need_team(r, p, kTokensMax);
  return r;
}

// Predicted from the clocks of its steps, not fitted (docs/lab/cuda-routing.md).
double cost_us(const Problem& p, const DeviceInfo&) {
  return 1.5 + 0.5e-3 * static_cast<double>(p.experts) + 1e-3 * static_cast<double>(p.tokens);
}

struct Launcher {
  static Status enqueue(const Problem&, const RouteTopk::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<RouteTopk> route_topk_fewtokens_sm90 = {
    .name = "cuda.route_topk.fewtokens_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RouteTopk>,
    .enqueue = enqueue_of<RouteTopk, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/few_tokens.cuh"
#include "backends/cuda/tile/shared_slots.cuh"

namespace sluice::cuda {
namespace {

struct Few {
  const void* logits;
  int64_t logits_stride;
  const float* bias;
  int bf16;
  uint32_t top_k;
  tile::SharedSlots shared;
  float scale;
  int32_t* ids;
  float* weights;
};

// kShared: there are shared slots.
template <int kExperts, int kList, tile::TeamKind kKind, bool kShared>
__global__ void __launch_bounds__(kExperts) topk_few(const __grid_constant__ Few p) {
  extern __shared__ uint4 shared[];
  auto& m = *reinterpret_cast<tile::TeamMemory<kExperts, kList>*>(shared);
  const uint32_t e = threadIdx.x, token = blockIdx.x;
  tile::release_next();
  float bias = 0;
  if constexpr (tile::kTeamRules[kKind].by_score)
    if (p.bias) bias = p.bias[e];
  tile::wait_for_previous();
  const float logit = tile::load_logit(p.logits, token * p.logits_stride + e, p.bf16);
  tile::clear_team(m, e);
  const tile::TeamChoice chosen =
      tile::choose_by_team<kExperts, kList, kKind>(m, logit, bias, e, [] { __syncthreads(); });
  if (chosen.slot < p.top_k) tile::leave_choice(m, chosen, e);
  __syncthreads();
  if (e >= 32) return;
  const tile::Chosen of_slot = tile::weigh_by_team<kExperts, kList, kKind>(m, p.top_k, chosen.row.most, e);
  const uint32_t slot = token * (kShared ? p.shared.all : p.top_k) + e;
  if (e < p.top_k) p.ids[slot] = of_slot.expert, p.weights[slot] = of_slot.weight * p.scale;
  if (kShared) tile::put_shared(p.shared, p.ids, p.weights, token, e);
}

Status Launcher::enqueue(const Problem& p, const RouteTopk::Args& a, Workspace, Stream stream) {
  const Few few{.logits = a.logits.data,
                .logits_stride = a.logits.stride[0],
                .bias = a.bias.as<const float>(),
                .bf16 = p.logits == DType::kBF16,
                .top_k = static_cast<uint32_t>(p.top_k),
                .shared = tile::shared_slots(p),
                .scale = p.scale_here ? static_cast<float>(p.scale) : 1.f,
                .ids = a.ids.as<int32_t>(),
                .weights = a.weights.as<float>()};
  Launch how{.grid = {static_cast<unsigned>(p.tokens), 1, 1},
             .block = {static_cast<unsigned>(p.experts), 1, 1}};
  void (*kernel)(Few) = nullptr;
#define SLUICE_KERNEL(experts, list, kind)                                    \
  if (tile::team_serves(p, experts, list, tile::kind)) {                      \
    kernel = p.shared_slots > 0 ? topk_few<experts, list, tile::kind, true>   \
                                : topk_few<experts, list, tile::kind, false>; \
    how.shared_bytes = sizeof(tile::TeamMemory<experts, list>);               \
  }
  SLUICE_TEAM_KERNELS(SLUICE_KERNEL)
#undef SLUICE_KERNEL
  return launch(route_topk_fewtokens_sm90.name, kernel, how, stream, few);
}

}  // namespace

}  // namespace sluice::cuda
#endif
