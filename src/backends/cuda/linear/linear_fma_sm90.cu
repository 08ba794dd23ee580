// A dense layer for problems that the tensor core kernels refuse: f32 operands, weights in the
// CPU's panels, widths that are not a multiple of 8, rows of x at any address. A CTA computes tiles
// of 64 features x 64 rows. Both operands are in shared memory as f32, and a thread has 4 x 4 sums.
//
// Wins    problems that no other kernel accepts: f32 x or weights, odd or short widths.
// Loses   wherever another kernel accepts, because it uses no tensor cores.
// Limits  none beyond the contract. A sum is added up from the first k to the last, so the kernel is batch-invariant.
// Source  original; the contract is ops/linear.h.
#include "backends/cuda/linear/linear.h"

namespace sluice::cuda {
namespace {

constexpr int kTile = 64, kStep = 16;  // features and rows of a tile; values of k per step

Refusal supports(const Linear::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

// Not fitted: whole rounds of tiles, at half of the GPU's FMA rate.
double cost_us(const Linear::Problem& p, const DeviceInfo& d) {
  constexpr double kShare = 0.5, kResident = 4;
  const auto tiles = static_cast<double>(linear_parts(std::max<int64_t>(p.tokens, 1), kTile)) *
                     static_cast<double>(linear_parts(p.features, kTile));
  const double tile_us =
      2.0 * kTile * kTile * static_cast<double>(p.width) / (kShare * d.f32_flops_per_us / d.cores);
  return stream_us<Linear>(p, d) + std::max(tiles / d.cores, 1 / kResident) * tile_us;
}

struct Launcher {
  static Status enqueue(const Linear::Problem&, const Linear::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<Linear> linear_fma_sm90 = {
    .name = "cuda.linear.fma_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<Linear>,
    .enqueue = enqueue_of<Linear, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {
namespace {

struct Parameters {
  LinearOutput out;
  const void *x, *w;
  int64_t x_stride;
  int64_t feature_tiles, tiles;
  int width;
};

constexpr int kThreads = 256, kEach = 4;          // 4 x 4 sums per thread
constexpr int kPitch = kTile + 4;                 // floats; the padding keeps rows aligned to 16 bytes
constexpr int kLoads = kTile * kStep / kThreads;  // elements of each operand that a thread copies per step

// Copies rows of one operand from global to shared memory, transposed to [k][row]. Zeros past the last row and the last k.
template <class T>
struct RowMajor {
  const T* at;
  int64_t stride, rows;
  __device__ __forceinline__ float load(int64_t row, int k) const {
    return tile::to_f32(at[row * stride + k]);
  }
};
struct Panels {
  const __nv_bfloat16* at;
  PanelShape shape;
  int64_t rows;
  __device__ __forceinline__ float load(int64_t row, int k) const {
    return tile::to_f32(at[panel_bf16_index(shape, panel_row(false, row, false), k)]);
  }
};

template <class Operand>
__device__ __forceinline__ void fetch(float (&to)[kLoads], const Operand& from, int64_t first, int k,
                                      int width) {
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int element = static_cast<int>(threadIdx.x) + i * kThreads;
    const int64_t row = first + element / kStep;
    const int at = k + element % kStep;
    to[i] = row < from.rows && at < width ? from.load(row, at) : 0.f;
  }
}
__device__ __forceinline__ void put(float (&to)[kStep][kPitch], const float (&values)[kLoads]) {
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int element = static_cast<int>(threadIdx.x) + i * kThreads;
    to[element % kStep][element / kStep] = values[i];
  }
}

template <class X, class W>
__device__ __forceinline__ void multiply_tile(const Parameters& p, const X& x, const W& w,
                                              int64_t first_token, int first_feature) {
  __shared__ __align__(16) float xs[kStep][kPitch], ws[kStep][kPitch];
  const int column = static_cast<int>(threadIdx.x) % 16 * kEach,
            row = static_cast<int>(threadIdx.x) / 16 * kEach;
  float sum[kEach][kEach] = {};
  float next_x[kLoads], next_w[kLoads];
  fetch(next_x, x, first_token, 0, p.width);
  fetch(next_w, w, first_feature, 0, p.width);
#pragma unroll 1
  for (int k = 0; k < p.width; k += kStep) {
    __syncthreads();  // all threads have read the tile of the previous step
    put(xs, next_x);
    put(ws, next_w);
    __syncthreads();
    if (k + kStep < p.width) {
      fetch(next_x, x, first_token, k + kStep, p.width);
      fetch(next_w, w, first_feature, k + kStep, p.width);
    }
    const int steps = min(kStep, p.width - k);
#pragma unroll 4
    for (int i = 0; i < steps; ++i) {
      float a[kEach], b[kEach];
      tile::load(a, &xs[i][row]);
      tile::load(b, &ws[i][column]);
#pragma unroll
      for (int t = 0; t < kEach; ++t)
#pragma unroll
        for (int n = 0; n < kEach; ++n) sum[t][n] = fmaf(a[t], b[n], sum[t][n]);
    }
  }
  float bias[kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n) bias[n] = p.out.bias_of(first_feature + column + n);
#pragma unroll
  for (int t = 0; t < kEach; ++t) {
#pragma unroll
    for (int n = 0; n < kEach; ++n) sum[t][n] += bias[n];
    p.out.finish_four(first_token + row + t, first_feature + column, sum[t]);
  }
}

template <class X, class W, WeightLayout kLayout>
__global__ void __launch_bounds__(kThreads) linear_fma(const __grid_constant__ Parameters p) {
  tile::release_next();
  tile::wait_for_previous();
  const RowMajor<X> x{static_cast<const X*>(p.x), p.x_stride, p.out.tokens};
#pragma unroll 1
  for (int64_t i = blockIdx.x; i < p.tiles; i += gridDim.x) {
    const int64_t token = i / p.feature_tiles * kTile;
    const int feature = static_cast<int>(i % p.feature_tiles) * kTile;
    if constexpr (kLayout == WeightLayout::kPanels16) {
      multiply_tile(p, x,
                    Panels{static_cast<const __nv_bfloat16*>(p.w),
                           panel_shape(p.out.features, false, p.width), p.out.features},
                    token, feature);
    } else {
      multiply_tile(p, x, RowMajor<W>{static_cast<const W*>(p.w), p.width, p.out.features}, token, feature);
    }
  }
}

using Kernel = void (*)(Parameters);
template <class X>
Kernel kernel_for(const Linear::Problem& p) {
  constexpr auto kRowMajor = WeightLayout::kRowMajor, kPanels16 = WeightLayout::kPanels16;
  if (p.layout == kPanels16) return linear_fma<X, __nv_bfloat16, kPanels16>;
  return p.w == DType::kF32 ? linear_fma<X, float, kRowMajor> : linear_fma<X, __nv_bfloat16, kRowMajor>;
}

Status Launcher::enqueue(const Linear::Problem& p, const Linear::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  constexpr int64_t kGridMax = 132 * 8;
  const int64_t feature_tiles = linear_parts(p.features, kTile);
  const Parameters parameters{.out = linear_output(p, a),
                              .x = a.x.data,
                              .w = a.w.data,
                              .x_stride = a.x.stride[0],
                              .feature_tiles = feature_tiles,
                              .tiles = feature_tiles * linear_parts(p.tokens, kTile),
                              .width = static_cast<int>(p.width)};
  const Launch how{.grid = {static_cast<unsigned>(std::min(parameters.tiles, kGridMax)), 1, 1},
                   .block = {kThreads, 1, 1}};
  return launch(linear_fma_sm90.name,
                p.x == DType::kF32 ? kernel_for<float>(p) : kernel_for<__nv_bfloat16>(p), how, stream,
                parameters);
}

}  // namespace
}  // namespace sluice::cuda
#endif
