// Rows of tokens in the order of an expert GEMM's rows, for kernels that fetch them by TMA boxes.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile_call.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "backends/cuda/experts/cost.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {
namespace {

struct GatherParameters {
  const __nv_bfloat16* x;
  const int32_t *order, *row_begin, *row_count;
  uint4* to;
  int64_t x_stride, rows;
  int pieces, slots, wide;  // 16 bytes each; wide: rows of x begin at multiples of 16 bytes
  int experts, parts;       // parts: that the list of each expert is cut into
};

constexpr int kThreads = 256, kCuts = 4;

__device__ __forceinline__ uint4 piece_of(const GatherParameters& p, const __nv_bfloat16* row, int piece) {
  if (p.wide) return __ldg(reinterpret_cast<const uint4*>(row) + piece);
  const auto* numbers = reinterpret_cast<const uint16_t*>(row) + piece * 8;
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = numbers[2 * i] | static_cast<uint32_t>(numbers[2 * i + 1]) << 16;
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// One row by a warp, kPieces loads under way in each lane.
__device__ __forceinline__ void copy_row(const GatherParameters& p, int64_t r) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int flat = p.order[r];
  if (flat < 0) return;
  const __nv_bfloat16* from = p.x + flat / p.slots * p.x_stride;
  uint4* to = p.to + r * p.pieces;
#pragma unroll 1
  for (int at = lane; at < p.pieces; at += 32 * kCuts) {
    uint4 piece[kCuts];
#pragma unroll
    for (int i = 0; i < kCuts; ++i)
      if (at + 32 * i < p.pieces) piece[i] = piece_of(p, from, at + 32 * i);
#pragma unroll
    for (int i = 0; i < kCuts; ++i)
      if (at + 32 * i < p.pieces) to[at + 32 * i] = piece[i];
  }
}

// A block a piece of an expert's list, the first pieces of all experts first. Tokens ascend in a list, so a row of x is read for
// all of its experts at about the same time, and comes from memory once.
__global__ void __launch_bounds__(kThreads) expert_gemm_order_rows(const __grid_constant__ GatherParameters p) {
  tile::wait_for_previous();
  tile::release_next();
#pragma unroll 1
  for (int unit = static_cast<int>(blockIdx.x); unit < p.parts * p.experts;
       unit += static_cast<int>(gridDim.x)) {
    const int part = unit / p.experts, e = unit - part * p.experts;
    const int64_t begin = p.row_begin[e], count = p.row_count[e];
    const int64_t end = min(p.rows, begin + count * (part + 1) / p.parts);
    for (int64_t r = begin + count * part / p.parts + threadIdx.x / 32; r < end; r += kThreads / 32)
      copy_row(p, r);
  }
}

}  // namespace

Status order_rows(std::string_view name, const ExpertGemm::Problem& p, const ExpertGemm::Args& a, void* to,
                  Stream stream) {
  constexpr int kRowsOfBlock = kThreads / 32, kEachSm = 8;
  const int parts = std::max(1, static_cast<int>(expert_load(p).rows_each / kRowsOfBlock));
  const GatherParameters how{
      .x = a.x.as<const __nv_bfloat16>(),
      .order = a.order.as<const int32_t>(),
      .row_begin = a.row_begin.as<const int32_t>(),
      .row_count = a.row_count.as<const int32_t>(),
      .to = static_cast<uint4*>(to),
      .x_stride = a.x.stride[0],
      .rows = p.rows,
      .pieces = static_cast<int>(p.width / 8),
      .slots = static_cast<int>(p.slots),
      .wide = a.x.stride[0] % 8 == 0,
      .experts = static_cast<int>(p.experts),
      .parts = parts,
  };
  const int64_t blocks =
      std::min<int64_t>(int64_t{queue_of(stream).sms} * kEachSm, int64_t{parts} * p.experts);
  return launch(name, expert_gemm_order_rows,
                Launch{.grid = {static_cast<unsigned>(blocks), 1, 1}, .block = {kThreads, 1, 1}}, stream,
                how);
}

}  // namespace sluice::cuda
#endif
