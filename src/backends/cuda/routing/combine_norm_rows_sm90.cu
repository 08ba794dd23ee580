// Combine and the following norm. A CTA computes one row and keeps it in registers from the sum of its
// slots to the scaling by the norm. A row has the same bits as with two kernels, whatever the batch.
//
// Wins    from 8 tokens on: a decode step of gpt-oss-20b on an H100 takes 3482 us fused and 3528 us unfused at 8 tokens, 5473 and
//         5501 us at 64 (docs/lab/cuda-step-launches.md). It saves a launch and does not read y again.
// Loses   nowhere. At 1 and 2 tokens it saves no time, because Combine spreads their columns over more CTAs.
// Limits  see supports() below.
// Source  original; the contract, including the order of the sum, is ops/fused/combine_norm.h.
#include "backends/cuda/card.h"
#include "ops/fused/combine_norm.h"

namespace sluice::cuda {
namespace {

constexpr int64_t kColumns = 8, kThreadsMax = 1024;  // per thread; per CTA

Refusal supports(const CombineNorm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  need_multiple(r, "hidden", p.combine.hidden, kColumns, "16-byte accesses");
  r.need(!p.x_unaligned, "rows at multiples of 16 bytes", "x_unaligned=1");
  r.need(p.combine.hidden <= kColumns * kThreadsMax, "hidden <= 8192 (a row in the registers of a CTA)",
         "hidden", p.combine.hidden);
  return r;
}

struct Launcher {
  static Status enqueue(const CombineNorm::Problem&, const CombineNorm::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<CombineNorm> combine_norm_rows_sm90 = {
    .name = "cuda.combine_norm.rows_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<CombineNorm>,
    .workspace_bytes = no_workspace<CombineNorm>,
    .enqueue = enqueue_of<CombineNorm, Launcher>(),
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/routing/combine_rows.cuh"
#include "backends/cuda/tile/block_sum.cuh"

namespace sluice::cuda {

namespace {

// How a CTA is sized. Few rows: all loads of a row are in flight at once. Many rows: threads
// have few registers, so that several CTAs fit on an SM, and some load while others add.
struct Pace {
  int threads, ctas,
      slots_at_once;  // maximum number of threads per CTA; minimum number of CTAs per SM; slots whose loads
                      // are in flight together
  bool weight_first;  // the norm's weight is loaded before the wait for the previous launch
};
enum class Rows : uint8_t { kFew, kMany };
constexpr Pace kPaces[] = {{kThreadsMax, 1, 4, true}, {512, 4, 1, false}};
__host__ __device__ constexpr Pace pace_of(Rows rows) { return kPaces[static_cast<int>(rows)]; }
constexpr int64_t kManyRows = 192, kManyColumns = pace_of(Rows::kMany).threads * kColumns;

struct Parameters {
  combining::Parameters sum;
  const void* weight;
  void* normed;
  int64_t normed_stride;  // elements between rows
  float eps;
};

template <class G, class B, class Y, class W, Rows kRows>
__global__ void __launch_bounds__(pace_of(kRows).threads, pace_of(kRows).ctas)
    combine_norm(const __grid_constant__ Parameters p) {
  constexpr int N = static_cast<int>(kColumns);
  constexpr Pace kPace = pace_of(kRows);
  __shared__ combining::Slots slots;
  const int64_t token = blockIdx.x;
  const int column = static_cast<int>(threadIdx.x) * N;
  const bool mine = column < p.sum.hidden;
  tile::release_next();
  float weight[N];
  if (kPace.weight_first && mine) tile::load(weight, static_cast<const W*>(p.weight) + column);
  combining::find_slots(p.sum, token, slots);
  float h[N], squares = 0;
  if (mine) {
    combining::sum_slots<N, kPace.slots_at_once, G, B, Y>(p.sum, token, slots, column, h);
    tile::store(static_cast<Y*>(p.sum.y) + token * p.sum.y_stride + column, h);
#pragma unroll
    for (float& x : h) x = tile::to_f32(tile::from_f32<Y>(x)), squares = fmaf(x, x, squares);
  }
  const float inverse = 1.f / sqrtf(tile::block_sum(squares) / static_cast<float>(p.sum.hidden) + p.eps);
  if (!mine) return;
  if (!kPace.weight_first) tile::load(weight, static_cast<const W*>(p.weight) + column);
#pragma unroll
  for (int i = 0; i < N; ++i) h[i] = h[i] * inverse * weight[i];
  tile::store(static_cast<Y*>(p.normed) + token * p.normed_stride + column, h);
}

using B16 = __nv_bfloat16;
using Kernel = void (*)(Parameters);
template <class G, class B, class Y, class W>
Kernel kernel_for(const CombineNorm::Problem& p) {
  return p.combine.tokens >= kManyRows && p.combine.hidden <= kManyColumns
             ? combine_norm<G, B, Y, W, Rows::kMany>
             : combine_norm<G, B, Y, W, Rows::kFew>;
}
template <class G, class B, class Y>
Kernel kernel_for(const CombineNorm::Problem& p) {
  return p.norm_w == DType::kBF16 ? kernel_for<G, B, Y, B16>(p) : kernel_for<G, B, Y, float>(p);
}
template <class G, class B>
Kernel kernel_for(const CombineNorm::Problem& p) {
  return p.combine.y == DType::kBF16 ? kernel_for<G, B, B16>(p) : kernel_for<G, B, float>(p);
}
template <class G>
Kernel kernel_for(const CombineNorm::Problem& p) {
  return p.combine.b == DType::kBF16 ? kernel_for<G, B16>(p) : kernel_for<G, float>(p);
}

Status Launcher::enqueue(const CombineNorm::Problem& p, const CombineNorm::Args& a, Workspace,
                         Stream stream) {
  const Combine::Problem& sum = p.combine;
  if (sum.tokens == 0) return {};
  const Parameters parameters{.sum = combining::parameters_of(sum, a, false),
                              .weight = a.norm_weight.data,
                              .normed = a.normed.data,
                              .normed_stride = a.normed.stride[0],
                              .eps = static_cast<float>(p.eps)};
  constexpr int64_t kWarp = 32;
  const int64_t groups = sum.hidden / kColumns, threads = (groups + kWarp - 1) / kWarp * kWarp;
  const Launch how{.grid = {static_cast<unsigned>(sum.tokens), 1, 1},
                   .block = {static_cast<unsigned>(threads), 1, 1}};
  const Kernel kernel = sum.g == DType::kBF16 ? kernel_for<B16>(p) : kernel_for<float>(p);
  return launch(combine_norm_rows_sm90.name, kernel, how, stream, parameters);
}

}  // namespace
}  // namespace sluice::cuda
#endif
