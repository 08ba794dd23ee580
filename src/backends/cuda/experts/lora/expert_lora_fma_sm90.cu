// LoRA of experts with scalar FMAs, in one launch: a CTA computes one row. Warps compute A x, one element each; then each thread computes
// features.
//
// Wins    where mma_sm90 refuses: f32, widths or ranks that are no multiple of 8, unaligned rows, batch invariance.
// Loses   to mma_sm90 everywhere else.
// Limits  rows < 2^31. The order of every sum depends only on the shape, so the kernel is batch-invariant.
// Source  original; the contract is ops/expert_lora.h.
#include "backends/cuda/card.h"
#include "ops/expert_lora.h"

namespace sluice::cuda {
namespace {

constexpr int kRowThreads = 256;

Refusal supports(const ExpertLora::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

// Measured on gpt-oss at rank 16 (expert_lora_candidates.csv): two CTAs on an SM read 2.9 KB/us each, eight 0.9 KB/us. One alone is taken
// to be as fast as two.
double cost_us(const ExpertLora::Problem& p, const DeviceInfo& d) {
  constexpr double kAlonePerUs = 2.9e3, kSharedPerUs = 0.9e3, kResident = 8;
  const double rows = ExpertLora::expected_rows(p);
  const double bytes = static_cast<double>(
      bytes_of(p.w, ExpertLora::inner(p) * p.width + ExpertLora::product_rows(p) * p.rank));
  return kRampUs + 1.5 + std::max(bytes / kAlonePerUs, rows * bytes / (kResident * d.cores * kSharedPerUs));
}

struct Launcher {
  static Status enqueue(const ExpertLora::Problem&, const ExpertLora::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<ExpertLora> expert_lora_fma_sm90 = {
    .name = "cuda.expert_lora.fma_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<ExpertLora>,
    .enqueue = enqueue_of<ExpertLora, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/experts/lora/lora_rows.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {
namespace {

// z' of one element: adds the update of the row's pair, if it has one.
template <class W>
__device__ __forceinline__ float updated(const LoraParameters& p, const LoraRow& at, int row, int feature,
                                         bool up, const float* inner) {
  float sum = lora_before(p, row, at.expert, feature, up);
  if (at.pair < 0) return sum;
  const W* b = static_cast<const W*>(p.b) +
               (int64_t{at.pair} * p.product_rows + lora_product_row(p, feature, up)) * p.rank;
  const float* u = inner + (p.split && up ? p.rank : 0);
  float delta = 0;
  for (int k = 0; k < p.rank; ++k) delta = fmaf(tile::to_f32(b[k]), u[k], delta);
  return fmaf(p.scale[at.pair / p.experts], delta, sum);
}

template <class X, class W>
__global__ void __launch_bounds__(kRowThreads) expert_lora_fma(const __grid_constant__ LoraParameters p) {
  extern __shared__ float inner[];
  const int row = static_cast<int>(blockIdx.x), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  tile::wait_for_previous();
  tile::release_next();
  LoraRow at = lora_row<1>(p, row, 1);
  at.expert = __shfl_sync(~0u, at.expert, 0);
  at.x_row = __shfl_sync(~0u, at.x_row, 0);
  at.pair = __shfl_sync(~0u, at.pair, 0);
  if (at.expert < 0) return;  // the same for all threads of the CTA
  if (at.pair >= 0) {
    const X* x = static_cast<const X*>(p.x) + at.x_row * p.x_stride;
    for (int k = warp; k < p.inner; k += kRowThreads / 32) {
      const W* a = static_cast<const W*>(p.a) + (int64_t{at.pair} * p.inner + k) * p.width;
      float sum = 0;
      for (int h = lane; h < p.width; h += 32) sum = fmaf(tile::to_f32(a[h]), tile::to_f32(x[h]), sum);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (lane == 0) inner[k] = sum;
    }
  }
  __syncthreads();
  const tile::ActivationValues act = lora_activation(p, at.expert);
  for (int f = static_cast<int>(threadIdx.x); f < p.features; f += kRowThreads) {
    float value[1] = {updated<W>(p, at, row, f, false, inner)};
    if (p.gated) {
      const float up[1] = {updated<W>(p, at, row, f, true, inner)};
      tile::activate_gated(act, value, up);
    } else {
      tile::activate_plain(act, value);
    }
    lora_store(p, row, f, value[0]);
  }
}

Status Launcher::enqueue(const ExpertLora::Problem& p, const ExpertLora::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  using B16 = __nv_bfloat16;
  const bool x16 = p.x == DType::kBF16, w16 = p.w == DType::kBF16;
  const auto kernel = x16   ? w16 ? expert_lora_fma<B16, B16> : expert_lora_fma<B16, float>
                        : w16 ? expert_lora_fma<float, B16>
                            : expert_lora_fma<float, float>;
  const Launch how{.grid = {static_cast<unsigned>(p.rows), 1, 1},
                   .block = {kRowThreads, 1, 1},
                   .shared_bytes = static_cast<size_t>(ExpertLora::inner(p)) * sizeof(float)};
  return launch(expert_lora_fma_sm90.name, kernel, how, stream, lora_parameters(p, a));
}

}  // namespace

}  // namespace sluice::cuda
#endif
