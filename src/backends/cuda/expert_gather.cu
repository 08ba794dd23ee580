#include "backends/cuda/expert_gather.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {
namespace {

struct GatherParameters {
  const __nv_bfloat16* x;
  const int32_t *order, *in_use;
  uint4* to;
  int64_t x_stride, rows;
  int pieces, slots, wide;  // 16 bytes each; wide: rows of x begin at multiples of 16 bytes
};

constexpr int kThreads = 256, kPieces = 4;

__device__ __forceinline__ uint4 piece_of(const GatherParameters& p, const __nv_bfloat16* row, int piece) {
  if (p.wide) return __ldg(reinterpret_cast<const uint4*>(row) + piece);
  const auto* numbers = reinterpret_cast<const uint16_t*>(row) + piece * 8;
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = numbers[2 * i] | static_cast<uint32_t>(numbers[2 * i + 1]) << 16;
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// A warp a row, kPieces loads under way in each lane.
__global__ void __launch_bounds__(kThreads) gather(const __grid_constant__ GatherParameters p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t first = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32,
                warps = gridDim.x * int64_t{kThreads / 32};
  tile::wait_for_previous();
  tile::release_next();
  const int64_t rows = min(p.rows, static_cast<int64_t>(*p.in_use));
#pragma unroll 1
  for (int64_t r = first; r < rows; r += warps) {
    const int flat = p.order[r];
    if (flat < 0) continue;
    const __nv_bfloat16* from = p.x + flat / p.slots * p.x_stride;
    uint4* to = p.to + r * p.pieces;
#pragma unroll 1
    for (int at = lane; at < p.pieces; at += 32 * kPieces) {
      uint4 piece[kPieces];
#pragma unroll
      for (int i = 0; i < kPieces; ++i)
        if (at + 32 * i < p.pieces) piece[i] = piece_of(p, from, at + 32 * i);
#pragma unroll
      for (int i = 0; i < kPieces; ++i)
        if (at + 32 * i < p.pieces) to[at + 32 * i] = piece[i];
    }
  }
}

}  // namespace

size_t gathered_bytes(const ExpertGemm::Problem& p) { return static_cast<size_t>(p.rows * p.width) * 2; }

Status gather_rows(std::string_view name, const ExpertGemm::Problem& p, const ExpertGemm::Args& a, void* to,
                   Stream stream) {
  int sms = 0;
  SLUICE_TRY(check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, queue_of(stream).device),
                   "counting SMs"));
  const GatherParameters how{
      .x = a.x.as<const __nv_bfloat16>(),
      .order = a.order.as<const int32_t>(),
      .in_use = a.row_begin.as<const int32_t>() + p.experts,
      .to = static_cast<uint4*>(to),
      .x_stride = a.x.stride[0],
      .rows = p.rows,
      .pieces = static_cast<int>(p.width / 8),
      .slots = static_cast<int>(p.slots),
      .wide = has_wide_rows(a.x),
  };
  constexpr int64_t kEachSm = 8, kRowsOfBlock = kThreads / 32;
  const int64_t blocks = std::min(sms * kEachSm, (p.rows + kRowsOfBlock - 1) / kRowsOfBlock);
  return launch(name, gather,
                Launch{.grid = {static_cast<unsigned>(blocks), 1, 1}, .block = {kThreads, 1, 1}}, stream,
                how);
}

}  // namespace sluice::cuda
