// What the stream kernels that walk all experts of one product share (expert_gemm_mxfp4_stream_sm90,
// expert_gemm_bf16_stream_sm90 where sums are short): the list of units, and how a grid is laid over SMs.
//
// Two blocks on an SM, with two teams each: where the first of them has ended, a block of the next kernel may move in, and if
// that kernel's groups are settled, it looks up its units and fills its rings with weights before this one has ended.
#pragma once
#include <string_view>

#include "backends/cuda/experts/stream.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {

constexpr int kListTeams = 2, kListThreads = kListTeams * kTeamWarps * 32;
// On an SM: the next kernel's may move in where the first of them has ended.
constexpr int kListBlocksEach = 2;
constexpr int kListSharedMost = (227 << 10) / kListBlocksEach;

// The units of all experts, one expert behind the other, counted by one warp: a lane has `each` experts.
template <int N>
struct UnitList {
  const ExpertParameters& p;
  int each, lane_before, all;  // lane_before: units of the experts in front of this lane's

  __device__ __forceinline__ int units_of(int rows) const {
    return serves(p, rows) ? ceil_div(rows, N) * p.row_blocks : 0;
  }

  __device__ __forceinline__ explicit UnitList(const ExpertParameters& parameters)
      : p(parameters), each(ceil_div(parameters.experts, 32)) {
    constexpr int kAtOnce = 8;
    const int first = static_cast<int>(threadIdx.x % 32) * each, end = min(first + each, p.experts);
    int mine = 0;
#pragma unroll 1
    for (int e = first; e < first + each; e += kAtOnce) {
      int rows[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) rows[i] = e + i < end ? p.row_count[e + i] : 0;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) mine += units_of(rows[i]);
    }
    const int up_to = up_to_lane(mine);
    lane_before = up_to - mine;
    all = __shfl_sync(0xffffffffu, up_to, 31);
  }

  struct Found {
    int expert, rows, within;  // rows: of the expert; within: which of its units
  };
  // Unit `index` < all.
  __device__ __forceinline__ Found find(int index) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int owner = 31 - __clz(static_cast<int>(__ballot_sync(0xffffffffu, lane_before <= index)));
    const int rest = index - __shfl_sync(0xffffffffu, lane_before, owner), e = owner * each + lane;
    const int rows = lane < each && e < p.experts ? p.row_count[e] : 0;
    const int units = units_of(rows), before = up_to_lane(units) - units;
    const int which = 31 - __clz(static_cast<int>(__ballot_sync(0xffffffffu, before <= rest && units > 0)));
    return {uniform(owner * each + which), uniform(__shfl_sync(0xffffffffu, rows, which)),
            uniform(rest - __shfl_sync(0xffffffffu, before, which))};
  }
};

// What the list of one product is to expert_stream.cuh.
template <bool kGated>
struct ListWork {
  static constexpr bool kCuts = false, kAsksEarly = false;
  struct Taken {};
  const ExpertParameters& p;

  __device__ __forceinline__ const ExpertParameters& parameters(int) const { return p; }
  __device__ __forceinline__ bool gated(int) const { return kGated; }
  __device__ __forceinline__ int part_steps(int) const { return cuda::part_steps(p); }
  __device__ __forceinline__ int order(int row) const { return p.order[row]; }
  __device__ __forceinline__ int64_t x_row(int, int row) const {
    return p.slots > 0 ? p.order[row] / p.slots : row;
  }
  __device__ __forceinline__ int64_t y_row(const StreamUnit&, int row) const { return row; }
  __device__ __forceinline__ void wait_for_x(int) const { tile::wait_for_previous(); }
  __device__ __forceinline__ void end(int) const {}
};

// Launches `kernel` with `bytes` of shared memory a block, as many blocks as all SMs have room for.
inline Status launch_list(std::string_view name, void (*kernel)(ExpertParameters), size_t bytes,
                          const ExpertParameters& parameters, Stream stream) {
  const int sms = queue_of(stream).sms;
  const Launch how{.grid = {static_cast<unsigned>(sms * kListBlocksEach), 1, 1},
                   .block = {kListThreads, 1, 1},
                   .shared_bytes = bytes};
  return launch(name, kernel, how, stream, parameters);
}

}  // namespace sluice::cuda
