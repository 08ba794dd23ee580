// Router GEMM with scalar FMAs on tiles in shared memory. Accepts every problem of the contract.
//
// Wins    problems that no other kernel accepts: hidden is not a multiple of 8, or too small for tensor cores.
// Loses   everywhere else, by a factor of 11 and more (router_candidates.csv: 222 us against 5.6 us at 1024 tokens of 2880 x 128).
//         It uses no tensor cores and loads single elements; with few tokens it leaves SMs idle.
// Limits  none beyond the contract. A logit is one sum in the order of k, so the kernel is batch-invariant.
// Source  original; the contract is ops/router_gemm.h.
#include "backends/cuda/card.h"
#include "ops/router_gemm.h"

namespace sluice::cuda {
namespace {

constexpr int kSide = 16, kThreads = kSide * kSide;  // threads along tokens and along experts
constexpr int kDepth = 32;                           // elements of a row in shared memory at a time

// Large tiles load fewer bytes in total, but with up to kManyTokens tokens they would leave SMs idle.
int each_for(const RouterGemm::Problem& p) {
  constexpr int64_t kManyTokens = 512;
  return p.tokens > kManyTokens ? 4 : 1;
}

int64_t tiles(int64_t size, int64_t of) { return (size + of - 1) / of; }

Refusal supports(const RouterGemm::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

// H200: 86 us for 1 token x 128 experts x hidden 2880, 342 us for 512 x 512 x 4096. The steps along k are
// sequential; with several CTAs per SM, FMA throughput is the limit. The constants of large tiles are not fitted.
double cost_us(const RouterGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kLatencyUs = 1.5, kSmallStepUs = 0.93, kLargeStepUs = 1.6, kSmallBlocks = 3,
                   kLargeBlocks = 2;
  const int each = each_for(p), of = kSide * each;
  const double blocks = static_cast<double>(tiles(p.experts, of) * tiles(p.tokens, of));
  const double crowd = std::max(1.0, blocks / (d.cores * (each == 1 ? kSmallBlocks : kLargeBlocks)));
  return kLatencyUs +
         crowd * static_cast<double>(tiles(p.hidden, kDepth)) * (each == 1 ? kSmallStepUs : kLargeStepUs);
}

struct Launcher {
  static Status enqueue(const RouterGemm::Problem&, const RouterGemm::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<RouterGemm> router_gemm_fma_sm90 = {
    .name = "cuda.router_gemm.fma_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RouterGemm>,
    .enqueue = enqueue_of<RouterGemm, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/router.h"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {
namespace {

// kEach: tokens, and experts, per thread; a CTA has kSide * kEach tokens and as many experts. Grid: tiles of experts, tiles of tokens.
template <class X, class W, int kEach>
__global__ void __launch_bounds__(kThreads) fma_tile(const __grid_constant__ RouterParameters p) {
  constexpr int kTile = kSide * kEach;
  __shared__ float xs[kDepth][kTile + 1], ws[kDepth][kTile + 1];
  const int first_expert = blockIdx.x * kTile, first_token = blockIdx.y * kTile;
  const int column = threadIdx.x % kSide, row = threadIdx.x / kSide;
  const int load_k = threadIdx.x % kDepth, load_row = threadIdx.x / kDepth;
  tile::release_next();
  tile::wait_for_previous();
  constexpr int kLoads = kTile * kDepth / kThreads;
  float next_x[kLoads], next_w[kLoads];  // values for the next step, loaded during the products of this step
  const auto load = [&](int k) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int r = load_row + i * (kThreads / kDepth);
      const int token = min(first_token + r, p.tokens - 1), expert = min(first_expert + r, p.experts - 1);
      const bool in = k + load_k < p.hidden;
      next_x[i] = in ? tile::to_f32(static_cast<const X*>(p.x)[token * p.x_stride + k + load_k]) : 0.f;
      next_w[i] =
          in ? tile::to_f32(static_cast<const W*>(p.w)[int64_t{expert} * p.hidden + k + load_k]) : 0.f;
    }
  };
  float sum[kEach][kEach] = {};
  load(0);
  for (int k = 0; k < p.hidden; k += kDepth) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      xs[load_k][load_row + i * (kThreads / kDepth)] = next_x[i];
      ws[load_k][load_row + i * (kThreads / kDepth)] = next_w[i];
    }
    __syncthreads();
    load(k + kDepth);
#pragma unroll 8
    for (int i = 0; i < kDepth; ++i) {
      float x[kEach], w[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        x[j] = xs[i][row + j * kSide];
        w[j] = ws[i][column + j * kSide];
      }
#pragma unroll
      for (int t = 0; t < kEach; ++t) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) sum[t][e] = fmaf(x[t], w[e], sum[t][e]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int t = 0; t < kEach; ++t) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int token = first_token + row + t * kSide, expert = first_expert + column + e * kSide;
      if (token >= p.tokens || expert >= p.experts) continue;
      const float bias = p.bias ? tile::to_f32(static_cast<const W*>(p.bias)[expert]) : 0.f;
      store_logit(p, token, expert, sum[t][e] + bias);
    }
  }
}

template <class X, class W>
auto kernel_for(int each) {
  return each == 1 ? fma_tile<X, W, 1> : fma_tile<X, W, 4>;
}
template <class X>
auto kernel_for(DType w, int each) {
  return w == DType::kBF16 ? kernel_for<X, __nv_bfloat16>(each) : kernel_for<X, float>(each);
}

Status Launcher::enqueue(const RouterGemm::Problem& p, const RouterGemm::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  const int each = each_for(p), of = kSide * each;
  const auto kernel =
      p.x == DType::kBF16 ? kernel_for<__nv_bfloat16>(p.w, each) : kernel_for<float>(p.w, each);
  const Launch how{
      .grid = {static_cast<unsigned>(tiles(p.experts, of)), static_cast<unsigned>(tiles(p.tokens, of)), 1},
      .block = {kThreads, 1, 1}};
  return launch(router_gemm_fma_sm90.name, kernel, how, stream, router_parameters(p, a));
}

}  // namespace

}  // namespace sluice::cuda
#endif
