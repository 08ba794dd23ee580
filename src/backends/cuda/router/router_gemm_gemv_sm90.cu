// Router GEMM for one to four tokens: a CTA computes the logits of one or two experts. No cluster, no tile, one reduction.
//
// bf16 operands: a row is cut into slices along k, and a slice takes the place of a row in an mma.sync operand. A column of
// the operand of weights is a slice of an expert's row; a row of the other operand is a slice of a token. Sums over products
// of different slices are discarded. This is eight times the work, but it takes two instructions for 8 values of a thread
// and up to four tokens, where FMAs take 24 or more. A launch executes its instructions once, from a cold instruction cache,
// so fewer instructions are faster. Other operands: a thread has a few 16-byte chunks of the expert's row.
//
// Wins    one token of every router, two tokens of most (router_candidates.csv, plain launches): at one token up to 0.7 us faster than
//         splitk_sm90 with bf16 weights, 1.7 us with f32 weights. With f32 weights also at 4 tokens (3.5 us against 4.8 us).
// Loses   to splitk_sm90 at 4 tokens with bf16 weights (except for 2880 x 32), because every CTA reads every token.
// Limits  see supports() below. The order of a sum depends only on hidden and experts, so the kernel is batch-invariant.
// Source  original; the contract is ops/router_gemm.h.
#include "backends/cuda/card.h"
#include "backends/cuda/measured_cost.h"
#include "ops/router_gemm.h"

namespace sluice::cuda {
namespace {

constexpr int kThreadsMax = 512, kWarpsMax = kThreadsMax / 32;
constexpr int64_t kTokensMax = 4;

Refusal supports(const RouterGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  r.need(p.x == DType::kBF16 || p.w == DType::kF32,
         "x in bf16 if w is in bf16 (no kernel for x in f32 with w in bf16)",
         std::string("x=") + text(p.x) + " w=" + text(p.w));
  need_multiple(r, "hidden", p.hidden, 8, "16-byte chunks of a row");
  r.need(p.tokens <= kTokensMax, "tokens <= 4 (every CTA reads every token)", "tokens", p.tokens);
  return r;
}

// Examples: H200, weights not in L2, one token: 1.94 us for 2880 x 128, 2.34 for 4096 x 256, 2.70 for 7168 x 256.
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
#include "backends/cuda/tile/mma.cuh"
#include "backends/cuda/tile/operand.cuh"

namespace sluice::cuda {
namespace {

using B16 = __nv_bfloat16;

// The parameters that the loads need come first: at a launch the parameters are in no cache, and they are fetched by cache line.
struct SliceParameters {
  const B16 *w, *x;
  int hidden, experts, tokens;
  uint32_t zero;     // always 0, but unknown to the compiler
  int64_t x_stride;  // elements between rows, as y_stride
  const B16* bias;
  void* y;
  int64_t y_stride;
  bool y_bf16;
};

// kExperts: experts per CTA, 1 or 2. kTokens: 1, 2 or 4; not less than the number of tokens.
//
// A CTA steps through both operands by 1024 elements of k; a warp has kSlices * 32 of them. Row g of an
// mma.sync operand is slice g % kSlices of expert g / kSlices (for x: of the token of the same index), and
// four lanes hold 8 elements of it each. So d[i, j] is part of a logit if rows i and j are the same slice.
template <int kExperts_, int kTokens_>
struct SliceShape {
  static constexpr int kExperts = kExperts_, kTokens = kTokens_;
  static constexpr int kWarps = 4 * kExperts, kSlices = 8 / kExperts, kStride = kWarps * kSlices * 32;
  static constexpr int kEach = 16 / kSlices,
                       kSets = (kTokens + kEach - 1) / kEach;  // tokens per product; products
  static constexpr int kHalves =
      kTokens > kEach / 2 ? 2 : 1;  // halves of an operand's 16 rows that can have tokens
  // Independent accumulators, so that a product does not wait for the previous one.
  // The number is the same for all token counts, so that the results are, too.
  static constexpr int kChains = 2 * kExperts;

  using Parts = float[kWarps][kTokens][kExperts][kSlices];
  using Sums = float[kSets][kChains][4];
  using Inputs = tile::Eight<B16>[kSets][kHalves];
  // The token of row g (half 0) or g + 8 (half 1) of the operand in product q.
  static __device__ __forceinline__ int token_of(int q, int half, int g) {
    return q * kEach + (g + 8 * half) / kSlices;
  }
};

// A zero that depends on all loads, so no sum starts before the last load has been issued.
// Without it the compiler moves each load next to its use, which serializes the loads.
template <class S, bool kOnce, int kFlight>
__device__ __forceinline__ float zero_after_loads(const tile::Eight<B16> (&w)[kFlight],
                                                  const typename S::Inputs (&x)[kFlight], uint32_t zero) {
  uint32_t any = 0;
#pragma unroll
  for (int i = 0; i < kFlight; ++i) {
    any |= kOnce ? 0 : w[i].word[0].x;
#pragma unroll
    for (int q = 0; q < S::kSets; ++q)
#pragma unroll
      for (int half = 0; half < S::kHalves; ++half) any |= x[i][q][half].word[0].x;
  }
  return __uint_as_float(any & zero);
}

template <class S, int kFlight>
__device__ __forceinline__ void multiply_chunks(typename S::Sums& acc, const tile::Eight<B16> (&w)[kFlight],
                                                const typename S::Inputs (&x)[kFlight]) {
#pragma unroll
  for (int i = 0; i < kFlight; ++i)
#pragma unroll
    for (int q = 0; q < S::kSets; ++q) {
      const uint4 low = x[i][q][0].word[0], high = S::kHalves > 1 ? x[i][q][S::kHalves - 1].word[0] : uint4{},
                  b = w[i].word[0];
      const uint32_t a0[4] = {low.x, high.x, low.y, high.y}, b0[2] = {b.x, b.y};
      const uint32_t a1[4] = {low.z, high.z, low.w, high.w}, b1[2] = {b.z, b.w};
      tile::mma(acc[q][2 * i % S::kChains], a0, b0);
      tile::mma(acc[q][(2 * i + 1) % S::kChains], a1, b1);
    }
}

// Adds up the independent accumulators and stores this warp's partial logits.
template <class S>
__device__ __forceinline__ void leave_parts(typename S::Parts& parts, typename S::Sums& acc, int warp, int g,
                                            int c) {
  constexpr int kSlices = S::kSlices;
  const int slice = g % kSlices;
#pragma unroll
  for (int q = 0; q < S::kSets; ++q)
#pragma unroll
    for (int chain = 1; chain < S::kChains; ++chain)
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[q][0][i] += acc[q][chain][i];
  // A lane has columns 2c and 2c + 1 of row g. For each expert, one of the lanes has the column with the same slice as row g.
  if (c % (kSlices / 2) == slice / 2)
#pragma unroll
    for (int q = 0; q < S::kSets; ++q)
#pragma unroll
      for (int half = 0; half < S::kHalves; ++half) {
        const int t = S::token_of(q, half, g);
        if (t < S::kTokens)
          parts[warp][t][c / (kSlices / 2)][slice] =
              g % 2 == 0 ? acc[q][0][2 * half] : acc[q][0][2 * half + 1];
      }
}

// The logit of a token: bias plus all partial logits.
template <class S>
__device__ __forceinline__ float logit_of(const typename S::Parts& parts, int token, int expert, float bias) {
  float4 sum[S::kSlices / 4];
#pragma unroll
  for (int j = 0; j < S::kWarps; ++j)
#pragma unroll
    for (int i = 0; i < S::kSlices / 4; ++i) {
      const float4 more = *reinterpret_cast<const float4*>(&parts[j][token][expert][4 * i]);
      if (j == 0)
        sum[i] = more;
      else
        sum[i] = {sum[i].x + more.x, sum[i].y + more.y, sum[i].z + more.z, sum[i].w + more.w};
    }
  float total = bias;
#pragma unroll
  for (int i = 0; i < S::kSlices / 4; ++i) total += (sum[i].x + sum[i].y) + (sum[i].z + sum[i].w);
  return total;
}

// kFlight: chunks of w that a thread loads at once. kOnce: no thread has more chunks than kFlight.
template <int kExperts, int kTokens, int kFlight, bool kOnce>
__global__ void __launch_bounds__(128 * kExperts) slices(const __grid_constant__ SliceParameters p) {
  using S = SliceShape<kExperts, kTokens>;
  __shared__ __align__(16) typename S::Parts parts;
  tile::release_next();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int first_expert = blockIdx.x * kExperts;
  const int begin = (warp * S::kSlices + g % S::kSlices) * 32 + 8 * c;
  const B16* w =
      p.w + (static_cast<int64_t>(min(first_expert + g / S::kSlices, p.experts - 1)) * p.hidden + begin);
  int left = p.hidden - begin;
  tile::Eight<B16> wv[kFlight];
  const auto load_w = [&] {
#pragma unroll
    for (int i = 0; i < kFlight; ++i) tile::load_weights(wv[i], w + i * S::kStride, i * S::kStride < left);
  };
  load_w();
  tile::wait_for_previous();

  const B16* x[S::kSets][S::kHalves];
  bool has[S::kSets][S::kHalves];
  const auto each_input = [&](auto f) {
#pragma unroll
    for (int q = 0; q < S::kSets; ++q)
#pragma unroll
      for (int half = 0; half < S::kHalves; ++half) f(q, half);
  };
  each_input([&](int q, int half) {
    const int t = S::token_of(q, half, g);
    has[q][half] = t < p.tokens;
    x[q][half] = p.x + (t * p.x_stride + begin);
  });
  typename S::Inputs xv[kFlight];
  const auto load_x = [&] {
#pragma unroll
    for (int i = 0; i < kFlight; ++i)
      each_input([&](int q, int half) {
        tile::load_inputs(xv[i][q][half], x[q][half] + i * S::kStride, has[q][half] && i * S::kStride < left,
                          true);
      });
  };
  load_x();
  // The logit that this thread adds up.
  const int token = threadIdx.x / kExperts, expert = first_expert + threadIdx.x % kExperts;
  const bool stores = token < min(kTokens, p.tokens) && expert < p.experts;
  const uint32_t bias = tile::load_weight(p.bias + expert, p.bias && stores);
  typename S::Sums acc;
#pragma unroll 1
  for (bool begun = false;; begun = true) {
    const float zero = zero_after_loads<S, kOnce>(wv, xv, p.zero);
#pragma unroll
    for (int q = 0; q < S::kSets; ++q)
#pragma unroll
      for (int chain = 0; chain < S::kChains; ++chain)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[q][chain][i] = kOnce || !begun ? zero : acc[q][chain][i] + zero;
    multiply_chunks<S>(acc, wv, xv);
    left -= kFlight * S::kStride;
    if (kOnce || left + begin <= 0) break;  // all threads agree
    w += kFlight * S::kStride;
    each_input([&](int q, int half) { x[q][half] += kFlight * S::kStride; });
    load_w();
    load_x();
  }
  leave_parts<S>(parts, acc, warp, g, c);
  __syncthreads();
  if (!stores) return;
  const float total =
      logit_of<S>(parts, token, static_cast<int>(threadIdx.x % kExperts), tile::weight_value<B16>(bias));
  const int64_t at = token * p.y_stride + expert;
  if (p.y_bf16)
    static_cast<B16*>(p.y)[at] = __float2bfloat16_rn(total);
  else
    static_cast<float*>(p.y)[at] = total;
}

template <int kExperts, int kFlight, bool kOnce>
auto slices_for(int64_t tokens) {
  return tokens == 1   ? slices<kExperts, 1, kFlight, kOnce>
         : tokens == 2 ? slices<kExperts, 2, kFlight, kOnce>
                       : slices<kExperts, 4, kFlight, kOnce>;
}
template <int kExperts>
auto slices_for(int64_t tokens, int64_t hidden) {
  constexpr int64_t kStride = 1024;
  switch ((hidden + kStride - 1) / kStride) {
    case 1:
      [[fallthrough]];
    case 2:
      return slices_for<kExperts, 2, true>(tokens);
    case 3:
      return slices_for<kExperts, 3, true>(tokens);
    case 4:
      return slices_for<kExperts, 4, true>(tokens);
    case 5:
      return slices_for<kExperts, 5, true>(tokens);
    case 6:
      return slices_for<kExperts, 6, true>(tokens);
    case 7:
      return slices_for<kExperts, 7, true>(tokens);
    default:
      return slices_for<kExperts, 4, false>(tokens);
  }
}

Status launch_slices(const RouterGemm::Problem& p, const RouterParameters& r, Stream stream) {
  // If there are enough experts for all SMs, a CTA has two experts, which share its reads of x.
  constexpr int64_t kTwoFrom = 192;
  const int experts = p.experts >= kTwoFrom ? 2 : 1;
  const SliceParameters parameters{.w = static_cast<const B16*>(r.w),
                                   .x = static_cast<const B16*>(r.x),
                                   .hidden = r.hidden,
                                   .experts = r.experts,
                                   .tokens = r.tokens,
                                   .zero = 0,
                                   .x_stride = r.x_stride,
                                   .bias = static_cast<const B16*>(r.bias),
                                   .y = r.y,
                                   .y_stride = r.y_stride,
                                   .y_bf16 = r.y_bf16};
  const Launch how{.grid = {static_cast<unsigned>((p.experts + experts - 1) / experts), 1, 1},
                   .block = {static_cast<unsigned>(128 * experts), 1, 1}};
  const auto kernel = experts == 2 ? slices_for<2>(p.tokens, p.hidden) : slices_for<1>(p.tokens, p.hidden);
  return launch(router_gemm_gemv_sm90.name, kernel, how, stream, parameters);
}

// kTokens: tokens per CTA. kChunks: chunks of eight elements that a thread loads at once, per row. kAnyRows: rows of x may
// start at any address. The code is short, because a launch executes it once and fetching its instructions is part of the time.
template <class X, class W, int kTokens, int kChunks, bool kAnyRows>
__global__ void __launch_bounds__(kThreadsMax) gemv(const __grid_constant__ RouterParameters p) {
  __shared__ float parts[kTokens][kWarpsMax];
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
    __syncwarp();  // keeps the compiler from moving each load to its use, which would serialize the loads
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
  const int token = first + warp;  // in the final reduction, warp w adds up the logit of token first + w
  if (warp >= kTokens || token >= p.tokens) return;
  float total = lane < warps ? parts[warp][lane] : 0.f;
#pragma unroll
  for (int away = kWarpsMax / 2; away > 0; away /= 2) total += __shfl_xor_sync(0xffffffffu, total, away);
  if (lane == 0) store_logit(p, token, expert, total + tile::weight_value<W>(bias));
}

// Threads per CTA, and chunks that a thread loads at once, for rows of `chunks` chunks.
struct Shape {
  int threads, chunks;
};
Shape shape_for(int64_t chunks) {
  constexpr int64_t kFewest = 128;  // the final reduction needs four warps, one per token
  // For rows of up to this many chunks, one chunk per thread is faster than two per thread with half the threads.
  constexpr int64_t kOneChunk = 256;
  const int in_flight = chunks <= kOneChunk ? 1 : 2;
  const int64_t threads = (chunks + 32 * in_flight - 1) / (32 * in_flight) * 32;
  return {static_cast<int>(std::clamp<int64_t>(threads, kFewest, kThreadsMax)), in_flight};
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
  const RouterParameters parameters = router_parameters(p, a);
  // On tensor cores, shorter sums may exceed their error bound.
  constexpr int64_t kShortestForProducts = 128;
  if (p.x == DType::kBF16 && p.w == DType::kBF16 && parameters.x_wide && p.hidden >= kShortestForProducts)
    return launch_slices(p, parameters, stream);
  // One token per CTA if all CTAs can then run at once.
  constexpr int64_t kBlocksAtOnce = 256;
  const int tokens = p.tokens == 1 || p.tokens * p.experts <= kBlocksAtOnce ? 1 : p.tokens <= 2 ? 2 : 4;
  return launch_gemv(parameters, p.x, p.w, tokens, shape_for(p.hidden / 8), stream);
}

}  // namespace

}  // namespace sluice::cuda
#endif
