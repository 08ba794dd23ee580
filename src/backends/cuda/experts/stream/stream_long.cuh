// The stream kernel over all experts of one product, for sums of any length. A unit is one row block, over all of k
// (stream.cuh); stream_list.cuh defines the grid. In the last round the teams of a CTA share a unit, at most one unit per CTA.
#pragma once
#include "backends/cuda/experts/stream/stream_list.cuh"

namespace sluice::cuda {

constexpr int kSharedRounds = 1;  // maximum number of units per CTA that its teams share in the last round

// In each round every team of the grid computes one unit. If few units remain for the last round, the teams of a CTA share each unit.
template <int N, class Weights, class Work>
__device__ __forceinline__ void fetch_all(const Work& work, StreamMemory<N, kListTeams, Weights>& m,
                                          int team) {
  const ExpertParameters& p = work.p;
  StreamFetch<N, kListTeams, Work, Weights> fetch(work, m, team);
  if (!p.settled) tile::wait_for_previous();
  const UnitList<N> list(p);
  const int blocks = static_cast<int>(gridDim.x), over = list.all % (kListTeams * blocks);
  const int alone = over <= kSharedRounds * blocks && may_share(p) ? list.all - over : list.all;
  int index = static_cast<int>(blockIdx.x) + team * blocks;
  bool shared = false, early = p.settled;
#pragma unroll 1
  while (true) {
    if (!shared && index >= alone) shared = true, index = alone + static_cast<int>(blockIdx.x);
    if (index >= list.all) break;
    const auto found = list.find(index);
    fetch.unit(found.expert, found.rows, __ldg(p.row_begin + found.expert), found.within, shared, early);
    early = false;
    index += shared ? blocks : kListTeams * blocks;
  }
  if (early) tile::wait_for_previous();
  fetch.no_more();
}

template <int N, bool kGated, class Weights>
__global__ void __launch_bounds__(kListThreads, kListBlocksEach)
    expert_gemm_stream(const __grid_constant__ ExpertParameters p) {
  extern __shared__ uint8_t dynamic[];
  auto& m = *reinterpret_cast<StreamMemory<N, kListTeams, Weights>*>(
      dynamic + (128 - tile::shared_address(dynamic) % 128) % 128);
  const int warp = uniform(static_cast<int>(threadIdx.x / 32));
  if (warp < kListTeams) m.init(warp);
  __syncthreads();
  const ListWork<kGated> work{p};
  if (warp < kListTeams) {
    fetch_all<N>(work, m, warp);
  } else {
    tile::wait_for_previous();
    tile::release_next();
    stream_multiply<N, kListTeams>(work, m, (warp - kListTeams) / 4, (warp - kListTeams) % 4);
  }
}

template <int N, class Weights>
Status launch_long(std::string_view name, bool gated, const ExpertParameters& parameters, Stream stream) {
  constexpr size_t kBytes = 128 + sizeof(StreamMemory<N, kListTeams, Weights>);
  static_assert(kBytes <= kListSharedMax);
  const auto kernel = gated ? expert_gemm_stream<N, true, Weights> : expert_gemm_stream<N, false, Weights>;
  return launch_list(name, kernel, kBytes, parameters, stream);
}

}  // namespace sluice::cuda
