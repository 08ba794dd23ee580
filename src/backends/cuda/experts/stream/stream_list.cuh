// The list of units and the grid of the stream kernels that loop over all experts of one
// product (expert_gemm_mxfp4_stream_sm90, and expert_gemm_bf16_stream_sm90 for short sums).
//
// An SM holds two CTAs of two teams each. When the first of the two exits, a CTA of the next launch can start in its place.
// If the next launch is settled, that CTA looks up its units and fills its rings with weights before this launch has ended.
#pragma once
#include <string_view>

#include "backends/cuda/experts/stream/stream.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {

constexpr int kListTeams = 2, kListThreads = kListTeams * kTeamWarps * 32;
// x
constexpr int kListBlocksEach = 2;
constexpr int kListSharedMax = (227 << 10) / kListBlocksEach;

// The units of all experts, ordered by expert. One warp counts them; a lane counts the units of `each` experts.
template <int N>
struct UnitList {
  const ExpertParameters& p;
  int each, lane_before, all;  // lane_before: units of experts that lower lanes count

  __device__ __forceinline__ int units_of(int rows) const {
    return serves(p, rows) ? ceil_div(rows, N) * p.row_blocks : 0;
  }

  __device__ __forceinline__ explicit UnitList(const ExpertParameters& parameters)
      : p(parameters), each(ceil_div(parameters.experts, 32)) {
    constexpr int kAtOnce = 8;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int first = lane * each, end = min(first + each, p.experts);
    int mine = 0;
#pragma unroll 1
    for (int e = first; e < first + each; e += kAtOnce) {
      int rows[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) rows[i] = e + i < end ? p.row_count[e + i] : 0;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) mine += units_of(rows[i]);
    }
    int up_to = mine;
    tile::add_lanes_before(lane, up_to);
    lane_before = up_to - mine;
    all = __shfl_sync(0xffffffffu, up_to, 31);
  }

  struct Found {
    int expert, rows, within;  // rows: of the expert; within: the unit's index among the expert's units
  };
  // The unit at `index` < all.
  __device__ __forceinline__ Found find(int index) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int owner = 31 - __clz(static_cast<int>(__ballot_sync(0xffffffffu, lane_before <= index)));
    const int rest = index - __shfl_sync(0xffffffffu, lane_before, owner), e = owner * each + lane;
    const int rows = lane < each && e < p.experts ? p.row_count[e] : 0;
    const int units = units_of(rows);
    int before = units;
    tile::add_lanes_before(lane, before);
    before -= units;
    const int which = 31 - __clz(static_cast<int>(__ballot_sync(0xffffffffu, before <= rest && units > 0)));
    return {uniform(owner * each + which), uniform(__shfl_sync(0xffffffffu, rows, which)),
            uniform(rest - __shfl_sync(0xffffffffu, before, which))};
  }
};

// The Work (stream.cuh) of one product over all experts.
template <bool kGated>
struct ListWork {
  static constexpr bool kCuts = false, kLoadsEarly = false;
  struct Partials {};
  const ExpertParameters& p;

  __device__ __forceinline__ const ExpertParameters& parameters(int) const { return p; }
  __device__ __forceinline__ bool gated(int) const { return kGated; }
  __device__ __forceinline__ int split_steps(int) const { return cuda::split_steps(p); }
  __device__ __forceinline__ int order(int row) const { return p.order[row]; }
  __device__ __forceinline__ int64_t x_row(int, int row) const {
    return p.slots > 0 ? p.order[row] / p.slots : row;
  }
  __device__ __forceinline__ int64_t y_row(const StreamUnit&, int row) const { return row; }
  __device__ __forceinline__ void wait_for_x(int) const { tile::wait_for_previous(); }
  __device__ __forceinline__ void end(int) const {}
};

// Launches `kernel` with `bytes` of shared memory per CTA, and as many CTAs as fit on all SMs.
inline Status launch_list(std::string_view name, void (*kernel)(ExpertParameters), size_t bytes,
                          const ExpertParameters& parameters, Stream stream) {
  const int sms = queue_of(stream).sms;
  const Launch how{.grid = {static_cast<unsigned>(sms * kListBlocksEach), 1, 1},
                   .block = {kListThreads, 1, 1},
                   .shared_bytes = bytes};
  return launch(name, kernel, how, stream, parameters);
}

}  // namespace sluice::cuda
