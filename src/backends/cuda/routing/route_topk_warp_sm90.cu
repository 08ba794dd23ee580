// Top-k routing with one warp per token. Scores stay in registers; each of top_k rounds finds the maximum over the warp by redux.sync.
//
// Wins    above 132 tokens, and where no other kernel of RouteTopk accepts the rule. With dependent launches
//         of 64 to 128 tokens it is up to 0.86 us faster than route_topk_fewtokens_sm90 after a slow router
//         GEMM, mostly router_gemm_splitk_sm90, but never after the fastest router GEMM
//         (router_candidates.csv).
// Loses   up to 128 tokens to route_topk_fewtokens_sm90 after the same router GEMM: by 0.14 to 1.1 us with
//         plain launches, by 0.13 to 1.6 us with dependent launches of up to 32 tokens. To the kernels of
//         RouteGroup if the ids are grouped next.
// Limits  none beyond the contract.
// Source  original; the contract, including ties, is ops/route_topk.h.
#include "backends/cuda/card.h"
#include "ops/route_topk.h"

namespace sluice::cuda {
namespace {

Refusal supports(const RouteTopk::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

// Fitted on an H200 to chains with four models' routing, 1 to 16384 tokens, minus the time of grouping (docs/lab/cuda-routing.md).
double cost_us(const RouteTopk::Problem& p, const DeviceInfo& d) {
  const double experts = static_cast<double>(p.experts), top_k = static_cast<double>(p.top_k);
  const double one = 1.6 + 0.04 * top_k;
  if (p.input != RoutingInput::kLogits || routing_rule(p.method).by_hash)
    return one + RouteTopk::bytes(p) / d.mem_bytes_per_us;
  const double score = RouteTopk::chooses_by_score(p) ? 3.1e-3 : 0;
  return one + 1e-3 * static_cast<double>(p.tokens) * (0.1 + 0.02 * top_k + (0.6e-3 + score) * experts);
}

struct Launcher {
  static Status enqueue(const RouteTopk::Problem&, const RouteTopk::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<RouteTopk> route_topk_warp_sm90 = {
    .name = "cuda.route_topk.warp_sm90",
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
#include "backends/cuda/tile/routing.cuh"

namespace sluice::cuda {
namespace {

using Score = RoutingRule::Score;
constexpr int kWarps = 4;

template <int N, Score kScore, bool kPlain>
__global__ void __launch_bounds__(32 * kWarps) route_topk(const __grid_constant__ tile::Routing r) {
  extern __shared__ uint32_t scratch[];
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int token = static_cast<int>(blockIdx.x) * kWarps + warp;
  tile::release_next();
  float bias[N];
  tile::load_bias(bias, r);
  tile::wait_for_previous();
  if (token >= r.tokens) return;
  const int valid = !kPlain && r.tokens_valid ? *r.tokens_valid : r.tokens;
  const bool real = kPlain || token < valid;
  tile::RawLogits<N> logits;
  if (kPlain || r.by_logits) tile::load_logits<N, kPlain>(logits, r, token);
  tile::Chosen chosen{-1, 0.f};
  if (real)
    chosen =
        tile::choose_token<N, kScore, kPlain>(r, token, logits, bias, scratch + warp * r.rule.scratch_words);
  tile::emit_token<kPlain>(r, token, real, chosen, [](int, int) {});
}

template <Score kScore, bool kPlain>
auto kernel_for(int n) {
  switch (n) {
    case 1:
      return route_topk<1, kScore, kPlain>;
    case 4:
      return route_topk<4, kScore, kPlain>;
    case 8:
      return route_topk<8, kScore, kPlain>;
    case 12:
      return route_topk<12, kScore, kPlain>;
    case 16:
      return route_topk<16, kScore, kPlain>;
    default:
      return route_topk<32, kScore, kPlain>;
  }
}
template <bool kPlain>
auto kernel_for(Score score, int n) {
  return score == Score::kSigmoid        ? kernel_for<Score::kSigmoid, kPlain>(n)
         : score == Score::kSqrtSoftplus ? kernel_for<Score::kSqrtSoftplus, kPlain>(n)
                                         : kernel_for<Score::kLogit, kPlain>(n);
}

Status Launcher::enqueue(const RouteTopk::Problem& p, const RouteTopk::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  const tile::Routing r = tile::routing(p, a);
  const int n = tile::experts_per_lane(p.experts);
  const Score score = tile::score_kind(p);
  const auto kernel = tile::is_plain(r) ? kernel_for<true>(score, n) : kernel_for<false>(score, n);
  const Launch how{.grid = {static_cast<unsigned>((p.tokens + kWarps - 1) / kWarps), 1, 1},
                   .block = {32 * kWarps, 1, 1},
                   .shared_bytes = static_cast<size_t>(r.rule.scratch_words) * kWarps * sizeof(uint32_t)};
  return launch(route_topk_warp_sm90.name, kernel, how, stream, r);
}

}  // namespace

}  // namespace sluice::cuda
#endif
