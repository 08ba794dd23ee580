// Copies rows of tokens into the order of an expert GEMM's rows of y, for kernels that load whole tiles of rows as TMA boxes.
#if defined(__CUDACC__)
#include "backends/cuda/experts/tile/tile_call.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "backends/cuda/experts/cost/cost.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {
namespace {

struct OrderParameters {
  const __nv_bfloat16* x;
  const int32_t *order, *row_begin, *row_count;
  uint4* to;
  int64_t x_stride, rows;
  int chunks, slots, aligned;  // 16-byte chunks per row; aligned: rows of x start at multiples of 16 bytes
  int experts, splits;         // the list of each expert is split into `splits` ranges
};

constexpr int kThreads = 256, kInFlight = 4;

__device__ __forceinline__ uint4 load_chunk(const OrderParameters& p, const __nv_bfloat16* row, int chunk) {
  if (p.aligned) return __ldg(reinterpret_cast<const uint4*>(row) + chunk);
  const auto* numbers = reinterpret_cast<const uint16_t*>(row) + chunk * 8;
  uint32_t packed[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) packed[i] = numbers[2 * i] | static_cast<uint32_t>(numbers[2 * i + 1]) << 16;
  return make_uint4(packed[0], packed[1], packed[2], packed[3]);
}

// One warp copies a row, with kInFlight loads in flight in each lane.
__device__ __forceinline__ void copy_row(const OrderParameters& p, int64_t r) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int flat = p.order[r];
  if (flat < 0) return;
  const __nv_bfloat16* from = p.x + flat / p.slots * p.x_stride;
  uint4* to = p.to + r * p.chunks;
#pragma unroll 1
  for (int at = lane; at < p.chunks; at += 32 * kInFlight) {
    uint4 chunk[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i)
      if (at + 32 * i < p.chunks) chunk[i] = load_chunk(p, from, at + 32 * i);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i)
      if (at + 32 * i < p.chunks) to[at + 32 * i] = chunk[i];
  }
}

// A CTA copies one of `splits` ranges of an expert's list; CTAs are numbered so that the first ranges of all experts come
// first. Tokens ascend in a list, so all experts read a row of x at about the same time, and it comes from memory only once.
__global__ void __launch_bounds__(kThreads)
    expert_gemm_order_rows(const __grid_constant__ OrderParameters p) {
  tile::wait_for_previous();
  tile::release_next();
#pragma unroll 1
  for (int unit = static_cast<int>(blockIdx.x); unit < p.splits * p.experts;
       unit += static_cast<int>(gridDim.x)) {
    const int split = unit / p.experts, e = unit - split * p.experts;
    const int64_t begin = p.row_begin[e], count = p.row_count[e];
    const int64_t end = min(p.rows, begin + count * (split + 1) / p.splits);
    for (int64_t r = begin + count * split / p.splits + threadIdx.x / 32; r < end; r += kThreads / 32)
      copy_row(p, r);
  }
}

}  // namespace

Status order_rows(std::string_view name, const ExpertGemm::Problem& p, const ExpertGemm::Args& a, void* to,
                  Stream stream) {
  constexpr int kRowsOfBlock = kThreads / 32, kEachSm = 8;
  const int splits = std::max(1, static_cast<int>(expert_load(p).rows_each / kRowsOfBlock));
  const OrderParameters how{
      .x = a.x.as<const __nv_bfloat16>(),
      .order = a.order.as<const int32_t>(),
      .row_begin = a.row_begin.as<const int32_t>(),
      .row_count = a.row_count.as<const int32_t>(),
      .to = static_cast<uint4*>(to),
      .x_stride = a.x.stride[0],
      .rows = p.rows,
      .chunks = static_cast<int>(p.width / 8),
      .slots = static_cast<int>(p.slots),
      .aligned = a.x.stride[0] % 8 == 0,
      .experts = static_cast<int>(p.experts),
      .splits = splits,
  };
  const int64_t blocks =
      std::min<int64_t>(int64_t{queue_of(stream).sms} * kEachSm, int64_t{splits} * p.experts);
  return launch(name, expert_gemm_order_rows,
                Launch{.grid = {static_cast<unsigned>(blocks), 1, 1}, .block = {kThreads, 1, 1}}, stream,
                how);
}

}  // namespace sluice::cuda
#endif
