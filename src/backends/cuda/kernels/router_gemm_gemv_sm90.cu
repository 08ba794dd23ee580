// Router GEMM for one or a few tokens: a CTA owns one expert, a thread a few 16-byte chunks of its row.
//
// Wins    one token, sometimes up to 4: no cluster, no tile, one reduction.
// Loses   more tokens, to splitk_sm90: every CTA reads every token, and the products are not the tensor cores'.
// Limits  see supports(). The order of a sum depends on hidden alone, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/router_gemm.h.
#include "backends/cuda/card.h"
#include "backends/cuda/measured_cost.h"
#include "ops/router_gemm.h"

namespace sluice::cuda {
namespace {

constexpr int kThreadsMost = 512, kWarpsMost = kThreadsMost / 32;
constexpr int64_t kTokensMost = 4;

Refusal supports(const RouterGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  r.need(p.x == DType::kBF16 || p.w == DType::kF32, "x in bf16 when w is (no instance of the other pair)",
         std::string("x=") + text(p.x) + " w=" + text(p.w));
  need_multiple(r, "hidden", p.hidden, 8, "16-byte chunks of a row");
  r.need(p.tokens <= kTokensMost, "tokens <= 4 (every CTA reads every token)", "tokens", p.tokens);
  return r;
}

// H200, weights not in L2, one token: 1.94 us for 2880 x 128, 2.34 for 4096 x 256, 2.70 for 7168 x 256.
double cost_us(const RouterGemm::Problem& p, const DeviceInfo& d) {
  if (p.x == DType::kBF16 && p.w == DType::kBF16) return measured_us("cuda.router_gemm.gemv_sm90", p, d);
  constexpr double kLatencyUs = 1.78, kTokenUs = 0.1, kTokenMegabyteUs = 0.07;
  const double weights = static_cast<double>(bytes_of(p.w, p.experts * p.hidden));
  const double more = static_cast<double>(std::max<int64_t>(p.tokens, 1) - 1);
  return kLatencyUs + weights / d.mem_bytes_per_us + more * (kTokenUs + kTokenMegabyteUs * weights / 1e6);
}

struct Launcher {
  static Status enqueue(const RouterGemm::Problem&, const RouterGemm::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<RouterGemm> router_gemm_gemv_sm90 = {
    .name = "cuda.router_gemm.gemv_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RouterGemm>,
    .enqueue = enqueue_of<RouterGemm, Launcher>(),
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/router.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/operand.cuh"

namespace sluice::cuda {
namespace {

// kTokens: tokens per CTA. kChunks: chunks of eight elements in flight per thread and row. kAnyRows: rows of x may start at
// any address. The code is short because a launch runs through it once, and instruction fetch is part of its time.
template <class X, class W, int kTokens, int kChunks, bool kAnyRows>
__global__ void __launch_bounds__(kThreadsMost) gemv(const __grid_constant__ RouterParameters p) {
  __shared__ float parts[kTokens][kWarpsMost];
  const int expert = blockIdx.x, first = blockIdx.y * kTokens;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const W* w = static_cast<const W*>(p.w) + (expert * p.hidden + threadIdx.x * 8);
  const X* x = static_cast<const X*>(p.x) + threadIdx.x * 8;
  const int step = blockDim.x * 8;

  tile::release_next();

  float sum[kTokens] = {};
  uint32_t bias = 0;
  tile::Eight<W> wv[kChunks];
  tile::Eight<X> xv[kChunks][kTokens];
  for (int base = threadIdx.x * 8; base - static_cast<int>(threadIdx.x * 8) < p.hidden;
       base += kChunks * step) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) tile::load_weights(wv[i], w + i * step, base + i * step < p.hidden);
    if (base == static_cast<int>(threadIdx.x * 8)) {
      bias = tile::load_weight(static_cast<const W*>(p.bias) + expert, p.bias != nullptr);
      tile::wait_for_previous();
    }
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t)
        tile::load_inputs(xv[i][t], x + min(first + t, p.tokens - 1) * p.x_stride + i * step,
                          base + i * step < p.hidden, !kAnyRows || p.x_wide);
    }
    __syncwarp();  // keeps the compiler from sinking each load to its use, which would serialise the loads
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      float wf[8];
      tile::to_floats(wf, wv[i]);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        float xf[8], even = 0, odd = 0;
        tile::to_floats(xf, xv[i][t]);
#pragma unroll
        for (int k = 0; k < 8; k += 2) {
          even = fmaf(xf[k], wf[k], even);
          odd = fmaf(xf[k + 1], wf[k + 1], odd);
        }
        sum[t] += even + odd;
      }
    }
    w += kChunks * step;
    x += kChunks * step;
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
#pragma unroll
    for (int away = 16; away > 0; away /= 2) sum[t] += __shfl_xor_sync(0xffffffffu, sum[t], away);
    if (lane == 0) parts[t][warp] = sum[t];
  }
  __syncthreads();
  const int token = first + warp;  // from here on, a warp reduces one token
  if (warp >= kTokens || token >= p.tokens) return;
  float total = lane < warps ? parts[warp][lane] : 0.f;
#pragma unroll
  for (int away = kWarpsMost / 2; away > 0; away /= 2) total += __shfl_xor_sync(0xffffffffu, total, away);
  if (lane == 0) store_logit(p, token, expert, total + tile::weight_value<W>(bias));
}

// Threads, and chunks in flight per thread, for rows of `chunks` chunks.
struct Shape {
  int threads, chunks;
};
Shape shape_for(int64_t chunks) {
  constexpr int64_t kFewest = 128;    // the final reduction needs one warp for each of four tokens
  constexpr int64_t kOneChunk = 256;  // up to this many threads, more threads are faster than two chunks each
  const int in_flight = chunks <= kOneChunk ? 1 : 2;
  const int64_t threads = (chunks + 32 * in_flight - 1) / (32 * in_flight) * 32;
  return {static_cast<int>(std::clamp<int64_t>(threads, kFewest, kThreadsMost)), in_flight};
}

template <class X, class W, int kChunks>
auto kernel_for(int tokens) {
  return tokens == 1   ? gemv<X, W, 1, kChunks, false>
         : tokens == 2 ? gemv<X, W, 2, kChunks, false>
                       : gemv<X, W, 4, kChunks, false>;
}
template <class X, class W>
auto kernel_for(int tokens, int chunks, bool wide) {
  if (!wide) return gemv<X, W, 1, 1, true>;
  return chunks == 1 ? kernel_for<X, W, 1>(tokens) : kernel_for<X, W, 2>(tokens);
}

Status launch_gemv(const RouterParameters& parameters, DType x, DType w, int tokens, Shape shape,
                   Stream stream) {
  const bool wide = parameters.x_wide;
  if (!wide) tokens = 1;
  const auto kernel = w == DType::kBF16 ? kernel_for<__nv_bfloat16, __nv_bfloat16>(tokens, shape.chunks, wide)
                      : x == DType::kBF16 ? kernel_for<__nv_bfloat16, float>(tokens, shape.chunks, wide)
                                          : kernel_for<float, float>(tokens, shape.chunks, wide);
  const Launch how{.grid = {static_cast<unsigned>(parameters.experts),
                            static_cast<unsigned>((parameters.tokens + tokens - 1) / tokens), 1},
                   .block = {static_cast<unsigned>(shape.threads), 1, 1}};
  return launch(router_gemm_gemv_sm90.name, kernel, how, stream, parameters);
}

Status Launcher::enqueue(const RouterGemm::Problem& p, const RouterGemm::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  // One token per CTA as long as all CTAs start at once.
  constexpr int64_t kBlocksAtOnce = 256;
  const int tokens = p.tokens == 1 || p.tokens * p.experts <= kBlocksAtOnce ? 1 : p.tokens <= 2 ? 2 : 4;
  return launch_gemv(router_parameters(p, a), p.x, p.w, tokens, shape_for(p.hidden / 8), stream);
}

}  // namespace

}  // namespace sluice::cuda
#endif
