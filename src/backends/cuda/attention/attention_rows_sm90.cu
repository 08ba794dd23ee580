// Attention row by row: a warp computes one query. It scores 32 keys at a time,
// one per lane, then adds their values, of which a lane has every 32nd element.
//
// Wins    problems that no other kernel accepts: f32, any head_dim, pages of any size, with caches of bf16, f32 or e4m3.
// Loses   wherever attention_decode_sm90 or attention_pages_sm90 accepts: every query reads the keys again, without tensor cores.
// Limits  tokens * heads < 2^30, because query indices are i32.
// Source  original; the contract is ops/attention.h.
#include "backends/cuda/attention/cards.h"

namespace sluice::cuda {
namespace {

Refusal supports(const Attention::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  constexpr int64_t kMax = int64_t{1} << 30;
  r.need(p.tokens * p.heads < kMax, "tokens * heads < 2^30 (query indices are i32)", "tokens * heads",
         p.tokens * p.heads);
  return r;
}

// A warp takes about 20 us for 32 keys of 64 elements, estimated from steps of gpt-oss-20b with two and four rows
// and a window of 128, which took 80 us per layer on an H200. All warps of an SM together are only 2.5x as fast.
double cost_us(const Attention::Problem& p, const DeviceInfo& d) {
  if (p.tokens == 0) return kRampUs;
  constexpr double kAloneUs = 20.0 / 32 / 64, kSharedUs = 8.0 / 32 / 64, kLongContext = 4096;
  const double queries = static_cast<double>(p.tokens * p.heads);
  const double keys = std::min(static_cast<double>(attention_context(p)), kLongContext);
  return kRampUs + keys * static_cast<double>(p.head_dim) *
                       std::max(kAloneUs, kSharedUs * std::ceil(queries / d.cores));
}

struct Launcher {
  static Status enqueue(const Attention::Problem&, const Attention::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<Attention> attention_rows_sm90 = {
    .name = "cuda.attention.rows_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<Attention>,
    .enqueue = enqueue_of<Attention, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/attention/rows.cuh"
#include "backends/cuda/attention/step.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/e4m3.cuh"

namespace sluice::cuda {
namespace {

using attention::Span;
using attention::Step;

constexpr int kWarps = 8, kThreads = 32 * kWarps, kKeys = 32;

struct Parameters {
  Step step;
  const void *k_cache, *v_cache;
  int dim;
};

// C: element type of the caches. kEach: elements per lane. Grid: rows along x, groups of kWarps heads along y.
template <class T, class C, int kEach>
__global__ void __launch_bounds__(kThreads) attention_rows(const __grid_constant__ Parameters call) {
  __shared__ float query[kWarps][32 * kEach];
  __shared__ attention::TileSearch search;
  const Step& p = call.step;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.y) * kWarps + warp, kv_head = head / p.group, dim = call.dim;
  tile::release_next();
  tile::wait_for_previous();
  const attention::Tiling by_row{.tile = p.group, .least = 1, .most = 0, .by_row = 1};
  if (!attention::find_tile<kThreads>(p, by_row, static_cast<int>(blockIdx.x), search)) return;
  if (head >= p.heads) return;
  const int64_t row = blockIdx.x;
  const T* q = static_cast<const T*>(p.q) + row * p.q_stride + static_cast<int64_t>(head) * dim;
  for (int i = lane; i < dim; i += 32) query[warp][i] = tile::to_f32(q[i]);
  __syncwarp();
  const Span span = search.found.span_of(p, 0);
  const int32_t* pages = p.page_table + static_cast<int64_t>(search.found.sequence) * p.pages_per_seq;
  float value[kEach] = {}, largest = attention::kNothing, sum = 0;
  for (int at = span.first; at < span.end; at += kKeys) {
    const int j = at + lane;
    const int page = j < span.end ? pages[j / p.page_size] : -1;
    const bool there = page >= 0 && page < p.pages;
    // Offset of the key's row in the cache.
    const int64_t place =
        there ? ((static_cast<int64_t>(page) * p.kv_heads + kv_head) * p.page_size + j % p.page_size) * dim
              : 0;
    float score = attention::kNothing;
    if (there) {
      const C* k = static_cast<const C*>(call.k_cache) + place;
      float dot = 0;
      for (int i = 0; i < dim; ++i) dot = fmaf(query[warp][i], tile::to_f32(k[i]), dot);
      score = dot * p.scale;
    }
    float most = score;
#pragma unroll
    for (int far = 16; far > 0; far /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, far));
    most = fmaxf(most, largest);
    const float base = attention::base_of(most), factor = attention::rescale(largest, base);
    const float weight = attention::exp2_of(score - base);
    float all = weight;
#pragma unroll
    for (int far = 16; far > 0; far /= 2) all += __shfl_xor_sync(0xffffffffu, all, far);
    largest = most, sum = sum * factor + all;
#pragma unroll
    for (int i = 0; i < kEach; ++i) value[i] *= factor;
    for (uint32_t left = __ballot_sync(0xffffffffu, there); left; left &= left - 1) {
      const int from = __ffs(static_cast<int>(left)) - 1;
      const float w = __shfl_sync(0xffffffffu, weight, from);
      const C* v = static_cast<const C*>(call.v_cache) + __shfl_sync(0xffffffffu, place, from);
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (lane + 32 * i < dim) value[i] = fmaf(w, tile::to_f32(v[lane + 32 * i]), value[i]);
    }
  }
  const float share = attention::share_of(attention::sink_of(p, head), largest, sum);
  T* y = static_cast<T*>(p.y) + row * p.y_stride + static_cast<int64_t>(head) * dim;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (lane + 32 * i < dim) y[lane + 32 * i] = tile::from_f32<T>(attention::scaled(value[i], share));
}

template <class T, class C>
auto kernel_for(int64_t dim) {
  return dim <= 64    ? attention_rows<T, C, 2>
         : dim <= 128 ? attention_rows<T, C, 4>
                      : attention_rows<T, C, 16>;
}
template <class T>
auto kernel_for(const Attention::Problem& p) {
  return p.cache == CacheType::kE4M3 ? kernel_for<T, E4M3>(p.head_dim) : kernel_for<T, T>(p.head_dim);
}

Status Launcher::enqueue(const Attention::Problem& p, const Attention::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  const Parameters parameters{.step = attention::step_of(p, a),
                              .k_cache = a.k_cache.data,
                              .v_cache = a.v_cache.data,
                              .dim = static_cast<int>(p.head_dim)};
  const Launch how{
      .grid = {static_cast<unsigned>(p.tokens), static_cast<unsigned>((p.heads + kWarps - 1) / kWarps), 1},
      .block = {kThreads, 1, 1}};
  const auto kernel = p.q == DType::kBF16 ? kernel_for<__nv_bfloat16>(p) : kernel_for<float>(p);
  return launch(attention_rows_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
