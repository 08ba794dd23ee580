// Expert MLP for few tokens: both products in one launch, and the weighted sums in a second launch.
//
// One CTA per SM, with teams as in stream.cuh. Each team groups the slots by expert for itself,
// which for so few slots is faster than reading lists from memory. It processes units of the
// first product, then units of the second. While other SMs still compute the first product, its
// ring fills with weights of the second, so memory never idles. Before a team reads rows of h,
// it waits at a grid barrier between the products. Row s of h and of g belongs to slot s.
//
// Small layers (is_small(): slices of tensor parallelism) have so few units of the first product that their
// sums are split, and such short sums in the second product that it has a separate mainloop (ShortSecond).
#pragma once
#include "backends/cuda/card.h"
#include "backends/cuda/combine_rows.h"
#include "backends/cuda/experts/cost/cost.h"
#include "backends/cuda/experts/fused/fused_fewtokens_short.cuh"
#include "backends/cuda/experts/mlp_workspace.h"
#include "backends/cuda/launch.h"

namespace sluice::cuda {

namespace fewtokens {

template <class Weights, class W>
__device__ __forceinline__ void fetch_all(const W& work, int team) {
  StreamFetch<kColumns, kTeams, W, Weights> fetch(work, work.m.stream, team);
  const int listed = work.slots.template make<false>(work.p);
  if (!fetch_first(work, fetch, listed)) work.arrive(4);
  if (!fetch_units<1>(work, fetch, listed)) work.wait_for_x(1);
  fetch.no_more();
  if (threadIdx.x % 32 == 0) tile::leave_grid_barrier(work.p.grid_words, gridDim.x * kTeams);
}

template <class Weights, bool kGated, bool kSmall>
__global__ void __launch_bounds__(kThreads, 1) expert_mlp_fewtokens(const __grid_constant__ Parameters p) {
  extern __shared__ uint8_t dynamic[];
  auto& m = *reinterpret_cast<Memory<Weights>*>(dynamic + (128 - tile::shared_address(dynamic) % 128) % 128);
  const int warp = uniform(static_cast<int>(threadIdx.x / 32));
  if (warp < kTeams) m.stream.init(warp);
  if (threadIdx.x == 0) {
    m.arrived = 0;
    tile::barrier_init(&m.grid_ready, 1);
    tile::barrier_init(&m.h_full, kTeams * 128);
    tile::barrier_visible();
  }
  __syncthreads();
  tile::wait_for_previous();
  tile::release_next();
  if (warp < kTeams) {
    const Work<Weights, kGated, kSmall> work{p, m, m.slots[warp], rank_of(warp)};
    if constexpr (kSmall) {
      ShortSecond<kGated>{work}.fetch(warp);
    } else {
      fetch_all<Weights>(work, warp);
    }
  } else {
    const int team = (warp - kTeams) / 4, slab = (warp - kTeams) % 4;
    const Work<Weights, kGated, kSmall> work{p, m, m.slots[team], rank_of(team)};
    const tile::RingPlace place = stream_multiply<kColumns, kTeams>(work, m.stream, team, slab);
    if constexpr (kSmall) ShortSecond<kGated>{work}.multiply(team, slab, place);
  }
}

}  // namespace fewtokens

template <class Weights, bool kGated>
auto kernel_for(const ExpertMlp::Problem& p) {
  if constexpr (Weights::kScaled) {
    if (fewtokens::is_small(p)) return fewtokens::expert_mlp_fewtokens<Weights, kGated, true>;
  }
  return fewtokens::expert_mlp_fewtokens<Weights, kGated, false>;
}

template <class Weights>
Status enqueue_fewtokens(std::string_view name, const ExpertMlp::Problem& p, const ExpertMlp::Args& a,
                         Workspace w, Stream stream) {
  using namespace fewtokens;
  if (p.tokens == 0) return {};
  constexpr size_t kBytes = 128 + sizeof(Memory<Weights>);
  static_assert(kBytes <= kSharedMax);
  const ExpertMlpBetween between = ExpertMlpBetween::at(w.data, p, stream.where);
  const int sms = queue_of(stream).sms;
  const ExpertGemm::Problem up = ExpertMlp::up(p), down = ExpertMlp::down(p);
  const Parameters parameters{
      .product = {expert_parameters(up, ExpertMlp::up(p, a, {}, between.h)),
                  expert_parameters(down, ExpertMlp::down(a, {}, between.h, between.g))},
      .ids = a.ids.as<const int32_t>(),
      .grid_words = queue_of(stream).grid_words,
      .tokens_slots = static_cast<int>(ExpertMlp::rows(p)),
      .splits = Splits(ExpertGemm::fragments(up).k_blocks)};
  const Launch how{.grid = {static_cast<unsigned>(sms), 1, 1},
                   .block = {kThreads, 1, 1},
                   .shared_bytes = kBytes,
                   .cooperative = true};
  SLUICE_TRY(launch(name, is_gated(p.act) ? kernel_for<Weights, true>(p) : kernel_for<Weights, false>(p), how,
                    stream, parameters));
  GroupRows::Args groups;
  groups.position = a.ids;  // row s of g belongs to slot s
  return launch_combine_by_slot(name, ExpertMlp::combine(p), ExpertMlp::combine(p, a, groups, between.g),
                                stream);
}

}  // namespace sluice::cuda
