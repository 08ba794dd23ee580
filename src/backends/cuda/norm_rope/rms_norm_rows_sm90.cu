// RMS norm: a CTA computes one row and keeps it in registers between the sum of
// squares and the scaling. If a row has several heads, a warp computes one head.
//
// Wins    always: it is the only kernel of RmsNorm. It moves each byte once.
// Loses   to combine_norm after a combine and to norm_router_route before a router; each saves one launch.
// Limits  none beyond the contract. Rows of more than 32768 columns and rows that are not 16-byte aligned are read twice, the
//         second time from L2. Heads are read twice, the second time from L1.
// Source  original; the contract is ops/rms_norm.h.
#include "backends/cuda/card.h"
#include "ops/rms_norm.h"

namespace sluice::cuda {
namespace {

Refusal supports(const RmsNorm::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

struct Launcher {
  static Status enqueue(const RmsNorm::Problem&, const RmsNorm::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<RmsNorm> rms_norm_rows_sm90 = {
    .name = "cuda.rms_norm.rows_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<RmsNorm>,
    .workspace_bytes = no_workspace<RmsNorm>,
    .enqueue = enqueue_of<RmsNorm, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/norm_rope/row_norm.cuh"
#include "backends/cuda/row_alignment.h"
#include "backends/cuda/tile/block_sum.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/vector.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWide = 8, kWarp = 32, kThreadsMax = 1024, kHeadsOfCta = 8;

struct Parameters {
  const void *x, *weight;
  void *residual, *y;
  int64_t x_stride, residual_stride, y_stride;  // elements between rows
  int hidden, heads;
  float eps;
};

// One row, or one head of a row: loads h of the contract and stores its results.
template <int N, class X, class W, class Y>
struct Row {
  const X* x;
  X* residual;  // may be null
  const W* weight;
  Y* y;

  __device__ __forceinline__ void load(float (&h)[N], int column) const {
    tile::load(h, x + column);
    if (!residual) return;
    float more[N];
    tile::load(more, residual + column);
#pragma unroll
    for (int i = 0; i < N; ++i) h[i] += more[i];
  }
  __device__ __forceinline__ void store(const float (&h)[N], const float (&w)[N], int column,
                                        float inverse) const {
    if (residual) tile::store(residual + column, h);
    float out[N];
    scale(out, h, inverse, w);
    tile::store(y + column, out);
  }
};

// A thread has kHeld groups of N adjacent columns in registers; kHeld = 0: any number of groups, which are read
// twice. y may alias x: a thread reads an element before it writes it, and no other thread accesses that element.
template <int N, int kHeld, class X, class W, class Y>
__global__ void __launch_bounds__(kThreadsMax) rms_norm(const __grid_constant__ Parameters p) {
  const int64_t token = blockIdx.x;
  const Row<N, X, W, Y> row{static_cast<const X*>(p.x) + token * p.x_stride,
                            p.residual ? static_cast<X*>(p.residual) + token * p.residual_stride : nullptr,
                            static_cast<const W*>(p.weight), static_cast<Y*>(p.y) + token * p.y_stride};
  const int first = threadIdx.x * N, stride = blockDim.x * N;
  tile::release_next();
  float sum = 0;
  if constexpr (kHeld == 0) {
    tile::wait_for_previous();
    float h[N], w[N];
    for (int column = first; column < p.hidden; column += stride) {
      row.load(h, column);
      sum += squares(h);
    }
    const float inverse = inverse_root(tile::block_sum(sum), p.hidden, p.eps);
    for (int column = first; column < p.hidden; column += stride) {
      row.load(h, column);
      tile::load(w, row.weight + column);
      row.store(h, w, column, inverse);
    }
  } else {
    float h[kHeld][N], w[kHeld][N];
    const auto for_mine = [&](auto f) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i)
        if (const int column = first + i * stride; column < p.hidden) f(i, column);
    };
    // There are no registers to prefetch more than one group of weights.
    if constexpr (kHeld == 1) for_mine([&](int i, int column) { tile::load(w[i], row.weight + column); });
    tile::wait_for_previous();
    for_mine([&](int i, int column) { row.load(h[i], column); });
    for_mine([&](int i, int) { sum += squares(h[i]); });
    const float inverse = inverse_root(tile::block_sum(sum), p.hidden, p.eps);
    for_mine([&](int i, int column) {
      if constexpr (kHeld > 1) tile::load(w[i], row.weight + column);
      row.store(h[i], w[i], column, inverse);
    });
  }
}

// A warp computes a head. y may alias x: a lane reads an element before it writes it, and no other lane accesses that element.
template <int N, class X, class W, class Y>
__global__ void __launch_bounds__(kWarp* kHeadsOfCta) rms_norm_heads(const __grid_constant__ Parameters p) {
  const int64_t token = blockIdx.x;
  const int head = blockIdx.y * blockDim.y + threadIdx.y;
  tile::release_next();
  tile::wait_for_previous();
  if (head >= p.heads) return;
  const int64_t begin = static_cast<int64_t>(head) * p.hidden;
  const Row<N, X, W, Y> row{
      static_cast<const X*>(p.x) + token * p.x_stride + begin,
      p.residual ? static_cast<X*>(p.residual) + token * p.residual_stride + begin : nullptr,
      static_cast<const W*>(p.weight), static_cast<Y*>(p.y) + token * p.y_stride + begin};
  const int first = threadIdx.x * N;
  constexpr int kStride = kWarp * N;
  float h[N], w[N], sum = 0;
  for (int column = first; column < p.hidden; column += kStride) {
    row.load(h, column);
    sum += squares(h);
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  const float inverse = inverse_root(sum, p.hidden, p.eps);
  for (int column = first; column < p.hidden; column += kStride) {
    row.load(h, column);
    tile::load(w, row.weight + column);
    row.store(h, w, column, inverse);
  }
}

using Kernel = void (*)(Parameters);

template <int N>
Kernel heads_kernel_for(const RmsNorm::Problem& p) {
  const auto of_y = [&]<class X, class W>(X*, W*) -> Kernel {
    return p.y == DType::kBF16 ? rms_norm_heads<N, X, W, __nv_bfloat16> : rms_norm_heads<N, X, W, float>;
  };
  const auto of_w = [&]<class X>(X* x) -> Kernel {
    return p.w == DType::kBF16 ? of_y(x, static_cast<__nv_bfloat16*>(nullptr))
                               : of_y(x, static_cast<float*>(nullptr));
  };
  return p.x == DType::kBF16 ? of_w(static_cast<__nv_bfloat16*>(nullptr))
                             : of_w(static_cast<float*>(nullptr));
}

template <int N, int kHeld, class X, class W>
Kernel kernel_for(DType y) {
  return y == DType::kBF16 ? rms_norm<N, kHeld, X, W, __nv_bfloat16> : rms_norm<N, kHeld, X, W, float>;
}
template <int N, int kHeld, class X>
Kernel kernel_for(DType w, DType y) {
  return w == DType::kBF16 ? kernel_for<N, kHeld, X, __nv_bfloat16>(y) : kernel_for<N, kHeld, X, float>(y);
}
template <int N, int kHeld>
Kernel kernel_for(const RmsNorm::Problem& p) {
  return p.x == DType::kBF16 ? kernel_for<N, kHeld, __nv_bfloat16>(p.w, p.y)
                             : kernel_for<N, kHeld, float>(p.w, p.y);
}

Status Launcher::enqueue(const RmsNorm::Problem& p, const RmsNorm::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  const Parameters parameters{.x = a.x.data,
                              .weight = a.weight.data,
                              .residual = a.residual.data,
                              .y = a.y.data,
                              .x_stride = a.x.stride[0],
                              .residual_stride = a.residual.stride[0],
                              .y_stride = a.y.stride[0],
                              .hidden = static_cast<int>(p.hidden),
                              .heads = static_cast<int>(p.heads),
                              .eps = static_cast<float>(p.eps)};
  bool all_wide = p.hidden % kWide == 0;
  for (const Tensor& t : {a.x, a.weight, a.residual, a.y}) all_wide &= wide_rows(t);
  if (p.heads > 1) {
    const int64_t warps = std::min<int64_t>(p.heads, kHeadsOfCta), groups = (p.heads + warps - 1) / warps;
    const Launch how{.grid = {static_cast<unsigned>(p.tokens), static_cast<unsigned>(groups), 1},
                     .block = {kWarp, static_cast<unsigned>(warps), 1},
                     .dependent = p.tokens * groups < kManyRows};
    return launch(rms_norm_rows_sm90.name, all_wide ? heads_kernel_for<kWide>(p) : heads_kernel_for<1>(p),
                  how, stream, parameters);
  }
  constexpr int kFew = 4;  // most column groups of a row that a thread can have in registers
  const int64_t groups = all_wide ? p.hidden / kWide : p.hidden;
  const bool once = groups <= kThreadsMax, few = groups <= kFew * kThreadsMax;
  const int64_t threads = std::min<int64_t>((groups + kWarp - 1) / kWarp * kWarp, kThreadsMax);
  const Kernel kernel = !all_wide ? kernel_for<1, 0>(p)
                        : once    ? kernel_for<kWide, 1>(p)
                        : few     ? kernel_for<kWide, kFew>(p)
                                  : kernel_for<kWide, 0>(p);
  const Launch how{.grid = {static_cast<unsigned>(p.tokens), 1, 1},
                   .block = {static_cast<unsigned>(threads), 1, 1},
                   .dependent = p.tokens < kManyRows};
  return launch(rms_norm_rows_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
