// LoRA delta in one launch. A cluster of 8 CTAs computes one token or eight. For A x, each CTA sums over an eighth of the
// columns of A; then every CTA adds up the partial sums of all eight. For B (A x), each CTA computes an eighth of the features.
//
// Wins    at hidden 2880 with four adapters (lora.csv): 1 to 64 tokens of rank 16 and 8 to 32 of rank 64: 4.1 us against 12.1 us of
//         mma_sm90 at 8 tokens of rank 16, 4.5 us against 6.5 us at 64. One launch, and A x stays in shared memory.
// Loses   to mma_sm90 beyond 64 tokens if mma_sm90 accepts the problem (128 tokens of rank 16: 9.7 us against 6.5 us), from 64 tokens on
//         at rank 64 (9.8 us against 8.9 us), and at one token of rank 64 (7.9 us against 6.7 us).
// Limits  tokens < 2^27, because a grid has up to eight CTAs per token. Loads 16 bytes at a time if hidden, row strides
//         and addresses allow it. The split of a sum depends only on hidden, so the kernel is batch-invariant.
// Source  original; the contract is ops/lora_delta.h.
#include "backends/cuda/card.h"
#include "ops/lora_delta.h"

namespace sluice::cuda {
namespace {

// Tokens per cluster. Beyond 64 tokens, eight share loads of A, because clusters of one token would more than fill the device.
int tokens_for(const LoraDelta::Problem& p) {
  constexpr int64_t kFewTokens = 64;
  return p.tokens > kFewTokens ? 8 : 1;
}

Refusal supports(const LoraDelta::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  r.need(p.tokens < (int64_t{1} << 27), "tokens < 2^27 (a grid has up to eight CTAs per token)", "tokens",
         p.tokens);
  return r;
}

// Fitted to an early run on an H200, hidden 2880, features 128: rank 16 took 3.5 us for one token, 4.4 for 64, 9.9 for 128, 183
// for 8192; rank 64 took 6.3 us for one token and 457 for 8192. In lora.csv one token takes 3.9 us (rank 16) and 7.9 us (rank 64).
double cost_us(const LoraDelta::Problem& p, const DeviceInfo&) {
  const double rank = static_cast<double>(p.rank), rows = static_cast<double>(p.hidden + p.features) / 3008;
  const double start = tokens_for(p) == 1 ? 2.6 + 0.055 * rank * rows : 6 + 0.2 * rank * rows;
  return start + static_cast<double>(p.tokens) * (0.011 + 0.0007 * rank) * rows;
}

struct Launcher {
  static Status enqueue(const LoraDelta::Problem&, const LoraDelta::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<LoraDelta> lora_delta_cluster_sm90 = {
    .name = "cuda.lora_delta.cluster_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<LoraDelta>,
    .enqueue = enqueue_of<LoraDelta, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/vector.cuh"

namespace sluice::cuda {
namespace {

constexpr int kBlocks = 8, kWarps = 8, kThreads = 32 * kWarps;
constexpr int kRows = 2;  // rows of A that a warp loads at once

struct Parameters {
  const void *x, *a, *b;
  const float* scale;
  const int32_t* adapter;
  void* y;
  int64_t x_stride, y_stride;  // elements between rows
  int64_t tokens;
  int features, hidden, rank, adapters;
  int block_columns;  // columns of A per CTA, a multiple of 8
  bool y_bf16;
  bool b_wide;  // rows of b are whole, aligned chunks of eight elements
};

__device__ __forceinline__ float read_y(const Parameters& p, int64_t at) {
  return p.y_bf16 ? tile::to_f32(static_cast<const __nv_bfloat16*>(p.y)[at])
                  : static_cast<const float*>(p.y)[at];
}
__device__ __forceinline__ void write_y(const Parameters& p, int64_t at, float value) {
  if (p.y_bf16) {
    static_cast<__nv_bfloat16*>(p.y)[at] = __float2bfloat16_rn(value);
  } else {
    static_cast<float*>(p.y)[at] = value;
  }
}

// Adds up the partial sums of A x from all CTAs of the cluster.
template <int kTokens>
__device__ __forceinline__ void add_parts(const Parameters& p, const int (&adapters)[kTokens],
                                          const float* part, float* inner) {
  for (int i = threadIdx.x; i < kTokens * p.rank; i += kThreads) {
    if (adapters[i / p.rank] < 0) continue;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j)
      sum += tile::load_remote(tile::remote_address(tile::shared_address(part + i), j));
    inner[i] = sum;
  }
}

// Adds scale * B u to y, where u = A x, for the cluster's tokens and this CTA's features.
template <class W, int kTokens>
__device__ __forceinline__ void multiply_b(const Parameters& p, const int (&adapters)[kTokens], int64_t first,
                                           int block, const float* inner) {
  const int each = (p.features + kBlocks - 1) / kBlocks;
  const int stop = min((block + 1) * each, p.features);
  const int count = max(0, stop - block * each);
  for (int i = threadIdx.x; i < kTokens * count; i += kThreads) {
    const int t = i / count, n = block * each + i % count, adapter = adapters[t];
    if (adapter < 0) continue;
    const float scale = p.scale[adapter];
    const int64_t at = (first + t) * p.y_stride + n;
    const float before = read_y(p, at);
    const W* b = static_cast<const W*>(p.b) + (int64_t{adapter} * p.features + n) * p.rank;
    const float* u = inner + t * p.rank;
    float sum = 0;
    int r = 0;
    if (p.b_wide) {
#pragma unroll 2
      for (; r < p.rank; r += 8) {
        float bv[8];
        tile::load(bv, b + r);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum = fmaf(bv[j], u[r + j], sum);
      }
    }
    for (; r < p.rank; ++r) sum = fmaf(tile::to_f32(b[r]), u[r], sum);
    write_y(p, at, fmaf(scale, sum, before));
  }
}

// kTokens: tokens per cluster. N: columns per load. Shared memory: this
// CTA's partial sums of A x, then the complete A x, each [kTokens][rank].
template <class X, class W, int kTokens, int N>
__global__ void __launch_bounds__(kThreads) delta(const __grid_constant__ Parameters p) {
  extern __shared__ float shared[];
  __shared__ int adapters[kTokens];
  float *part = shared, *inner = shared + kTokens * p.rank;
  const int block = blockIdx.x % kBlocks, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t first = blockIdx.x / kBlocks * int64_t{kTokens};
  const int begin = min(block * p.block_columns, p.hidden), end = min(begin + p.block_columns, p.hidden);
  tile::release_next();
  tile::wait_for_previous();
  if (threadIdx.x < kTokens) {
    const int64_t token = first + threadIdx.x;
    const int adapter = token < p.tokens ? p.adapter[token] : -1;
    adapters[threadIdx.x] = adapter < p.adapters ? adapter : -1;
  }
  __syncthreads();
  for (int leader = 0; leader < kTokens; ++leader) {
    // All tokens with the same adapter share its loads of A, in the iteration of the first of them (`leader`).
    const int adapter = adapters[leader];
    bool led = adapter < 0;
    for (int t = 0; t < leader; ++t) led |= adapters[t] == adapter;
    if (led) continue;
    bool mine[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) mine[t] = adapters[t] == adapter;
    for (int r = warp * kRows; r < p.rank; r += kWarps * kRows) {
      const W* a[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        a[i] = static_cast<const W*>(p.a) + (int64_t{adapter} * p.rank + min(r + i, p.rank - 1)) * p.hidden;
      float sum[kRows][kTokens] = {};
      for (int k = begin + lane * N; k < end; k += 32 * N) {
        float av[kRows][N];
#pragma unroll
        for (int i = 0; i < kRows; ++i) tile::load(av[i], a[i] + k);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          if (!mine[t]) continue;
          float xv[N];
          tile::load(xv, static_cast<const X*>(p.x) + (first + t) * p.x_stride + k);
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
#pragma unroll
            for (int j = 0; j < N; ++j) sum[i][t] = fmaf(av[i][j], xv[j], sum[i][t]);
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (!mine[t]) continue;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int step = 16; step > 0; step /= 2) sum[i][t] += __shfl_xor_sync(0xffffffffu, sum[i][t], step);
          if (lane == 0 && r + i < p.rank) part[t * p.rank + r + i] = sum[i][t];
        }
      }
    }
  }

  tile::cluster_publish();
  tile::cluster_wait();
  add_parts(p, adapters, part, inner);
  tile::cluster_publish();  // no CTA exits while another CTA reads its shared memory
  __syncthreads();
  multiply_b<W>(p, adapters, first, block, inner);
  tile::cluster_wait();
}

template <class X, class W, int kTokens>
auto kernel_for(bool wide) {
  return wide ? delta<X, W, kTokens, 8> : delta<X, W, kTokens, 1>;
}
template <class X, class W>
auto kernel_for(int tokens, bool wide) {
  return tokens == 1 ? kernel_for<X, W, 1>(wide) : kernel_for<X, W, 8>(wide);
}
template <class X>
auto kernel_for(DType w, int tokens, bool wide) {
  return w == DType::kBF16 ? kernel_for<X, __nv_bfloat16>(tokens, wide) : kernel_for<X, float>(tokens, wide);
}

Status Launcher::enqueue(const LoraDelta::Problem& p, const LoraDelta::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  constexpr int64_t kColumns = 8, kBytes = 16;
  const auto aligned = [](const Tensor& t, int64_t stride) {
    return reinterpret_cast<uintptr_t>(t.data) % kBytes == 0 && bytes_of(t.dtype, stride) % kBytes == 0;
  };
  const bool wide = p.hidden % kColumns == 0 && aligned(a.x, a.x.stride[0]) && aligned(a.a, p.hidden);
  const int tokens = tokens_for(p);
  const Parameters parameters{.x = a.x.data,
                              .a = a.a.data,
                              .b = a.b.data,
                              .scale = a.scale.as<const float>(),
                              .adapter = a.adapter.as<const int32_t>(),
                              .y = a.y.data,
                              .x_stride = a.x.stride[0],
                              .y_stride = a.y.stride[0],
                              .tokens = p.tokens,
                              .features = static_cast<int>(p.features),
                              .hidden = static_cast<int>(p.hidden),
                              .rank = static_cast<int>(p.rank),
                              .adapters = static_cast<int>(p.adapters),
                              .block_columns = static_cast<int>((p.hidden + kBlocks * kColumns - 1) /
                                                                (kBlocks * kColumns) * kColumns),
                              .y_bf16 = p.y == DType::kBF16,
                              .b_wide = p.rank % kColumns == 0 && aligned(a.b, p.rank)};
  const auto kernel = p.x == DType::kBF16 ? kernel_for<__nv_bfloat16>(p.w, tokens, wide)
                                          : kernel_for<float>(p.w, tokens, wide);
  const Launch how{.grid = {static_cast<unsigned>((p.tokens + tokens - 1) / tokens * kBlocks), 1, 1},
                   .block = {kThreads, 1, 1},
                   .shared_bytes = static_cast<size_t>(2 * tokens * p.rank) * sizeof(float),
                   .cluster = {kBlocks, 1, 1}};
  return launch(lora_delta_cluster_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
