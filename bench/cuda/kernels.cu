#include <cuda_bf16.h>

#include <string>

#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/e4m3.cuh"
#include "cuda/kernels.h"

namespace sluice::bench {
namespace {

constexpr int kThreads = 256;

__device__ uint32_t mixed(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return static_cast<uint32_t>(x >> 32);
}

__device__ void store(float* to, float value) { *to = value; }
__device__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }
__device__ void store(E4M3* to, float value) { *to = cuda::tile::from_f32<E4M3>(value); }

template <class T>
__global__ void fill(T* out, int64_t count, float scale, uint64_t seed) {
  cuda::tile::wait_for_previous();
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    // A sum of eight bytes: mean 1020, variance 8 * (256^2 - 1) / 12, close enough to a normal distribution.
    const uint32_t a = mixed(seed * 0x9e3779b97f4a7c15ull + 2 * i),
                   b = mixed(seed * 0x9e3779b97f4a7c15ull + 2 * i + 1);
    float sum = 0;
    for (int shift = 0; shift < 32; shift += 8)
      sum += static_cast<float>((a >> shift & 255) + (b >> shift & 255));
    store(out + i, scale * (sum - 1020.f) * (1 / 209.02f));
  }
}

// Words of hashed bits. kScales: each byte is 120, 121 or 122.
template <bool kScales>
__global__ void fill_words(uint32_t* out, int64_t words, uint64_t seed) {
  cuda::tile::wait_for_previous();
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * kThreads) {
    const uint32_t bits = mixed(seed * 0x9e3779b97f4a7c15ull + i);
    uint32_t scales = 0;
    for (int shift = 0; shift < 32; shift += 8) scales |= (120 + (bits >> shift & 255) % 3) << shift;
    out[i] = kScales ? scales : bits;
  }
}

__global__ void spin(uint64_t ns) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < ns);
}

__global__ void nothing() {
  cuda::tile::release_next();
  cuda::tile::wait_for_previous();
}

__global__ void __launch_bounds__(kThreads) read(const uint4* from, int64_t count, uint32_t* sums) {
  cuda::tile::wait_for_previous();
  uint32_t sum = 0;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = __ldcs(from + i + j * step);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < count; i += step) sum += from[i].x ^ from[i].y ^ from[i].z ^ from[i].w;
  if (__syncthreads_or(sum != 0) && threadIdx.x == 0) sums[blockIdx.x] = sum;
}

constexpr unsigned kFillBlocks = 1056;

__device__ void put_f32(uint8_t* to, float value) {
  const uint32_t bits = __float_as_uint(value);
  for (int i = 0; i < 4; ++i) to[i] = static_cast<uint8_t>(bits >> (8 * i));
}
__device__ uint32_t mixed(uint64_t seed, int64_t row, int64_t i) {
  uint64_t v = seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(row) * 0xBF58476D1CE4E5B9u +
               static_cast<uint64_t>(i);
  v = (v ^ v >> 31) * 0x94D049BB133111EBu;
  return static_cast<uint32_t>(v >> 32);
}
constexpr int64_t kBlock = 128;  // rows, and columns, that share a scale in checkpoints with block scales
__global__ void row_scales(WeightFormat f, uint8_t* out, int64_t rows, int64_t width, float size,
                           uint64_t seed) {
  cuda::tile::wait_for_previous();
  const int64_t groups = f.column_scales(width), bytes = f.row_scale_bytes(width);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    uint8_t* to = out + row * bytes;
    for (int64_t i = threadIdx.x; i < groups; i += blockDim.x) {
      if (f.scales == WeightScales::kBlocks) {
        const int64_t block = i * kScaleColumns / kBlock;
        put_f32(to + 4 * i, size * (0.75f + 0x1p-33f * static_cast<float>(mixed(seed, row / kBlock, block))));
      } else if (f.scales == WeightScales::kNv) {
        to[i] = static_cast<uint8_t>(0x34 + mixed(seed, row, i) % 8);  // 0.75 to 1.5
      } else {
        to[i] =
            static_cast<uint8_t>(127 + lrintf(log2f(size)) - 1 + static_cast<int>(mixed(seed, row, i) % 2));
      }
    }
    if (threadIdx.x == 0 && f.has_row_scale())
      put_f32(to + groups, size * (0.75f + 0x1p-33f * static_cast<float>(mixed(seed, row, -1))));
  }
}

}  // namespace

Status fill_normal(const Tensor& out, double scale, uint64_t seed, Stream stream) {
  const cuda::Launch how{.grid = {kFillBlocks, 1, 1}, .block = {kThreads, 1, 1}};
  const auto factor = static_cast<float>(scale);
  if (out.dtype == DType::kBF16)
    return cuda::launch("bench.fill", fill<__nv_bfloat16>, how, stream, out.as<__nv_bfloat16>(),
                        elements_of(out), factor, seed);
  if (out.dtype == DType::kF32)
    return cuda::launch("bench.fill", fill<float>, how, stream, out.as<float>(), elements_of(out), factor,
                        seed);
  if (out.dtype == DType::kE4M3)
    return cuda::launch("bench.fill", fill<E4M3>, how, stream, out.as<E4M3>(), elements_of(out), factor,
                        seed);
  return invalid(std::string("bench.fill: wanted bf16, f32 or e4m3, found ") + text(out.dtype));
}

Status fill_bytes(void* out, int64_t bytes, uint64_t seed, Stream stream) {
  const cuda::Launch how{.grid = {kFillBlocks, 1, 1}, .block = {kThreads, 1, 1}};
  return cuda::launch("bench.fill_bytes", fill_words<false>, how, stream, static_cast<uint32_t*>(out),
                      bytes / 4, seed);
}

Status fill_scales(void* out, int64_t bytes, uint64_t seed, Stream stream) {
  const cuda::Launch how{.grid = {kFillBlocks, 1, 1}, .block = {kThreads, 1, 1}};
  return cuda::launch("bench.fill_scales", fill_words<true>, how, stream, static_cast<uint32_t*>(out),
                      bytes / 4, seed);
}

Status fill_row_scales(WeightFormat f, void* out, int64_t rows, int64_t width, double size, uint64_t seed,
                       Stream stream) {
  const cuda::Launch how{.grid = {kFillBlocks, 1, 1}, .block = {kThreads, 1, 1}};
  return cuda::launch("bench.fill_row_scales", row_scales, how, stream, f, static_cast<uint8_t*>(out), rows,
                      width, static_cast<float>(size), seed);
}

Status delay(double us, Stream stream) {
  return cuda::launch("bench.delay", spin, {.block = {1, 1, 1}}, stream, static_cast<uint64_t>(us * 1000));
}

Status empty_kernel(Stream stream) {
  return cuda::launch("bench.empty", nothing, {.block = {32, 1, 1}}, stream);
}

Status read_all(const void* from, size_t bytes, uint32_t* sums, Stream stream) {
  return cuda::launch("bench.read", read, {.grid = {kReadBlocks, 1, 1}, .block = {kThreads, 1, 1}}, stream,
                      static_cast<const uint4*>(from), static_cast<int64_t>(bytes / sizeof(uint4)), sums);
}

}  // namespace sluice::bench
