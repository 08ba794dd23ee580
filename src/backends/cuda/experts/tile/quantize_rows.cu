// Rounds rows of x to FP8 for the tile kernels that multiply in FP8 (fp8_x of ops/expert_gemm.h).
#if defined(__CUDACC__)
#include <cuda_bf16.h>

#include <algorithm>

#include "backends/cuda/experts/tile/tile_call.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"
#include "ops/fragment_layout.h"

namespace sluice::cuda {
namespace {

struct QuantizeParameters {
  const __nv_bfloat16* x;
  const int32_t *order,
      *row_begin;  // order: null if row r of the output is row r of x; row_begin: null if all rows are in use
  uint4* to;
  float* scale;
  int64_t x_stride, rows;
  int width, chunks, slots, aligned, experts;  // chunks: of 16 columns in a row of the output
};

constexpr int kThreads = 256, kWarps = kThreads / 32, kColumns = 16;

// Columns 16 i to 16 i + 15 of a row as eight pairs; zeros past the width.
struct Chunk {
  uint32_t pairs[8];
};
__device__ __forceinline__ Chunk load_chunk(const QuantizeParameters& p, const __nv_bfloat16* row, int i) {
  Chunk out{};
  const int column = i * kColumns, left = p.width - column;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (left < 8 * (half + 1)) break;  // the width is a multiple of 8
    uint32_t(&four)[4] = reinterpret_cast<uint32_t(&)[4]>(out.pairs[4 * half]);
    if (p.aligned) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(row + column) + half);
      four[0] = v.x, four[1] = v.y, four[2] = v.z, four[3] = v.w;
      continue;
    }
    const auto* numbers = reinterpret_cast<const uint16_t*>(row) + column + 8 * half;
#pragma unroll
    for (int j = 0; j < 4; ++j) four[j] = numbers[2 * j] | static_cast<uint32_t>(numbers[2 * j + 1]) << 16;
  }
  return out;
}

__device__ __forceinline__ __nv_bfloat162 pair_of(uint32_t bits) {
  return *reinterpret_cast<const __nv_bfloat162*>(&bits);
}

// Two values as e4m3 times `multiplier`, saturated, the first in the low byte.
__device__ __forceinline__ uint32_t rounded(float first, float second, float multiplier) {
  uint16_t out;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
      : "=h"(out)
      : "f"(second * multiplier), "f"(first * multiplier));
  return out;
}

__device__ __forceinline__ void find_largest(const Chunk& chunk, __nv_bfloat162* largest) {
#pragma unroll
  for (int j = 0; j < 8; ++j) *largest = __hmax2_nan(*largest, __habs2(pair_of(chunk.pairs[j])));
}
__device__ __forceinline__ void store_rounded(const Chunk& chunk, float multiplier, uint4* to) {
  uint32_t words[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    static_assert(fragment_column8(8) == 1 && fragment_column8(1) == 2 && fragment_column8(2) == 4);
    const float2 lower = __bfloat1622float2(pair_of(chunk.pairs[c])),
                 upper = __bfloat1622float2(pair_of(chunk.pairs[4 + c]));
    words[c] = rounded(lower.x, upper.x, multiplier) | rounded(lower.y, upper.y, multiplier) << 16;
  }
  *to = make_uint4(words[0], words[1], words[2], words[3]);
}

// A warp rounds a row. Up to 32 * kHeld chunks of it stay in registers; the others are read twice.
template <int kHeld>
__device__ __forceinline__ void quantize_row(const QuantizeParameters& p, int64_t r) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int64_t from = r;
  if (p.order) {
    const int flat = p.order[r];
    if (flat < 0) return;
    from = flat / p.slots;
  }
  const __nv_bfloat16* row = p.x + from * p.x_stride;
  __nv_bfloat162 largest = pair_of(0);
  Chunk held[kHeld];
#pragma unroll
  for (int h = 0; h < kHeld; ++h) held[h] = load_chunk(p, row, lane + 32 * h);
#pragma unroll
  for (int h = 0; h < kHeld; ++h) find_largest(held[h], &largest);
#pragma unroll 4
  for (int i = lane + 32 * kHeld; i < p.chunks; i += 32) find_largest(load_chunk(p, row, i), &largest);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    largest = __hmax2_nan(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  const float of_row = __bfloat162float(__hmax_nan(largest.x, largest.y));
  // fmaxf() would drop a NaN.
  const float at_least = of_row < 1e-10f ? 1e-10f : of_row;
  const float multiplier = 448.f / at_least;
  if (lane == 0) p.scale[r] = at_least / 448.f;
  uint4* to = p.to + r * p.chunks;
#pragma unroll
  for (int h = 0; h < kHeld; ++h)
    if (lane + 32 * h < p.chunks) store_rounded(held[h], multiplier, to + lane + 32 * h);
#pragma unroll 4
  for (int i = lane + 32 * kHeld; i < p.chunks; i += 32)
    store_rounded(load_chunk(p, row, i), multiplier, to + i);
}

template <int kHeld>
__global__ void __launch_bounds__(kThreads, 2)
    expert_gemm_quantize_rows(const __grid_constant__ QuantizeParameters p) {
  tile::wait_for_previous();
  tile::release_next();
  const int64_t rows = p.row_begin ? min(p.rows, static_cast<int64_t>(p.row_begin[p.experts])) : p.rows;
#pragma unroll 1
  for (int64_t r = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; r < rows;
       r += static_cast<int64_t>(gridDim.x) * kWarps)
    quantize_row<kHeld>(p, r);
}

}  // namespace

Status quantize_rows(std::string_view name, const ExpertGemm::Problem& p, const ExpertGemm::Args& a,
                     bool orders, void* to, Stream stream, Tensor* x, const float** scale) {
  const bool tokens = p.slots > 0 && !orders;
  const int64_t rows = tokens ? p.tokens : p.rows, row_bytes = fp8_row_bytes(p);
  auto* scales = reinterpret_cast<float*>(static_cast<std::byte*>(to) + rows * row_bytes);
  const QuantizeParameters how{
      .x = a.x.as<const __nv_bfloat16>(),
      .order = orders ? a.order.as<const int32_t>() : nullptr,
      .row_begin = tokens ? nullptr : a.row_begin.as<const int32_t>(),
      .to = static_cast<uint4*>(to),
      .scale = scales,
      .x_stride = a.x.stride[0],
      .rows = rows,
      .width = static_cast<int>(p.width),
      .chunks = static_cast<int>(row_bytes / kColumns),
      .slots = static_cast<int>(p.slots),
      .aligned = reinterpret_cast<uintptr_t>(a.x.data) % 16 == 0 && a.x.stride[0] % 8 == 0,
      .experts = static_cast<int>(p.experts),
  };
  constexpr int kEachSm = 8;
  const int64_t blocks =
      std::min<int64_t>(int64_t{queue_of(stream).sms} * kEachSm, (rows + kWarps - 1) / kWarps);
  *x = make_tensor(to, DType::kBF16, {rows, row_bytes / 2}, Backend::kCuda);
  *scale = scales;
  // Registers for 3072 columns of a row, or for 6144.
  const auto kernel = how.chunks <= 32 * 6 ? expert_gemm_quantize_rows<6> : expert_gemm_quantize_rows<12>;
  return launch(name, kernel,
                Launch{.grid = {static_cast<unsigned>(blocks), 1, 1}, .block = {kThreads, 1, 1}}, stream,
                how);
}

}  // namespace sluice::cuda
#endif
