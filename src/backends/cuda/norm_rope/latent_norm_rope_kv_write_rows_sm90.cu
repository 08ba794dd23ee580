// The first CTA of a token normalizes and rotates the token's row of the cache: a thread has eight
// adjacent elements in registers, adds up squares with the other threads, and writes its elements to the
// token's page. The token's other CTAs rotate the queries in place, eight adjacent elements per thread.
//
// Wins    where it accepts the problem: one launch instead of four per layer of DeepSeek V3's family.
// Limits  see supports() below.
// Source  original; the contract is ops/fused/latent_norm_rope_kv_write.h.
#include "backends/cuda/card.h"
#include "backends/cuda/norm_rope/rope_pairs.cuh"
#include "ops/fused/latent_norm_rope_kv_write.h"

namespace sluice::cuda {
namespace {

using Op = LatentNormRopeKvWrite;
constexpr int64_t kEach = 8, kThreads = 128;  // elements per thread; threads per CTA

Refusal supports(const Op::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  r.need(p.rope.pairs == RopePairs::kInterleaved, "adjacent pairs", "pairs=halves");
  need_multiple(r, "rotary", p.rope.rotary, kEach, "eight elements of a thread");
  need_multiple(r, "rank", p.rank, kEach, "eight elements of a thread");
  need_multiple(r, "head_dim", p.rope.head_dim, kEach, "eight elements of a thread");
  need_multiple(r, "first", p.rope.first, kEach, "eight elements of a thread");
  r.need(!p.x_unaligned, "rows at multiples of 16 bytes", "x_unaligned=1");
  return r;
}

struct Launcher {
  static Status enqueue(const Op::Problem&, const Op::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<LatentNormRopeKvWrite> latent_norm_rope_kv_write_rows_sm90 = {
    .name = "cuda.latent_norm_rope_kv_write.rows_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<Op>,
    .workspace_bytes = no_workspace<Op>,
    .enqueue = enqueue_of<Op, Launcher>(),
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/norm_rope/cache_rows.cuh"
#include "backends/cuda/norm_rope/row_norm.cuh"
#include "backends/cuda/tile/block_sum.cuh"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {
namespace {

constexpr int N = static_cast<int>(kEach);
static_assert(kThreads * kEach == 1024);  // the longest row

// Strides are in elements, between rows.
struct Parameters {
  const int32_t *positions, *slot_of;
  const float* table;
  void *q, *k_cache;
  const void *k, *norm_weight;
  int64_t q_stride, k_stride, table_rows, slots;
  int heads, query_dim, first, rotary, rank;
  int kv_heads, page_size, head_dim;  // sizes of the cache
  float eps;
  int settled;
};

// The (cos, sin) of the four pairs in eight adjacent elements.
struct Angles {
  float at[N];
  __device__ __forceinline__ void rotate(float (&x)[N]) const {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const float a = x[i], b = x[i + 1], cos = at[i], sin = at[i + 1];
      x[i] = rotated(a, b, false, cos, sin), x[i + 1] = rotated(b, a, true, cos, sin);
    }
  }
};

template <class X, class W>
__global__ void __launch_bounds__(kThreads) latent_norm_rope_kv_write(const __grid_constant__ Parameters p) {
  const int64_t token = blockIdx.x;
  const bool row = blockIdx.y == 0;
  const int own = static_cast<int>(threadIdx.x), of_head = p.rotary / N;
  // The thread's eight elements: of the row, or of the rotated part of a head.
  const int query = (static_cast<int>(blockIdx.y) - 1) * static_cast<int>(kThreads) + own,
            head = query / of_head;
  const int at = row ? own * N : query % of_head * N;
  const bool mine = row ? at < p.head_dim : head < p.heads, norms = row && at < p.rank;
  const int place = row ? at - p.rank : at;  // index among the rotated elements
  tile::release_next();
  float w[N] = {};
  if (norms) tile::load(w, static_cast<const W*>(p.norm_weight) + at);
  if (!p.settled) tile::wait_for_previous();
  const int64_t position = p.positions[token], slot = p.slot_of[token];
  const bool rotates = mine && !norms && position >= 0 && position < p.table_rows;
  Angles angles;
  if (rotates) tile::load(angles.at, p.table + position * p.rotary + place);
  if (p.settled) tile::wait_for_previous();

  float x[N] = {};
  if (row) {
    if (mine) tile::load(x, static_cast<const X*>(p.k) + token * p.k_stride + at);
    const float sum = tile::block_sum(norms ? squares(x) : 0.f);
    if (norms) scale(x, x, inverse_root(sum, p.rank, p.eps), w);
    if (rotates) angles.rotate(x);
    if (mine && slot >= 0 && slot < p.slots)
      tile::store(static_cast<X*>(p.k_cache) + cache_row(p, slot, 0) + at, x);
    return;
  }
  if (!rotates) return;
  X* const q =
      static_cast<X*>(p.q) + token * p.q_stride + static_cast<int64_t>(head) * p.query_dim + p.first + at;
  tile::load(x, q);
  angles.rotate(x);
  tile::store(q, x);
}

using Kernel = void (*)(Parameters);

template <class X>
Kernel kernel_for(const Op::Problem& p) {
  return p.norm_w == DType::kBF16 ? latent_norm_rope_kv_write<X, __nv_bfloat16>
                                  : latent_norm_rope_kv_write<X, float>;
}

Status Launcher::enqueue(const Op::Problem& p, const Op::Args& a, Workspace, Stream stream) {
  const Rope::Problem& rope = p.rope;
  if (rope.tokens == 0) return {};
  const Parameters parameters{.positions = a.positions.as<const int32_t>(),
                              .slot_of = a.slot_of.as<const int32_t>(),
                              .table = a.table.as<const float>(),
                              .q = a.q.data,
                              .k_cache = a.k_cache.data,
                              .k = a.k.data,
                              .norm_weight = a.norm_weight.data,
                              .q_stride = a.q.stride[0],
                              .k_stride = a.k.stride[0],
                              .table_rows = rope.table_rows,
                              .slots = p.pages * p.page_size,
                              .heads = static_cast<int>(rope.heads),
                              .query_dim = static_cast<int>(rope.head_dim),
                              .first = static_cast<int>(rope.first),
                              .rotary = static_cast<int>(rope.rotary),
                              .rank = static_cast<int>(p.rank),
                              .kv_heads = 1,
                              .page_size = static_cast<int>(p.page_size),
                              .head_dim = static_cast<int>(Op::row(p)),
                              .eps = static_cast<float>(p.eps),
                              .settled = p.settled};
  const int64_t of_queries = (rope.heads * (rope.rotary / kEach) + kThreads - 1) / kThreads,
                ctas = 1 + of_queries;
  const Launch how{.grid = {static_cast<unsigned>(rope.tokens), static_cast<unsigned>(ctas), 1},
                   .block = {static_cast<unsigned>(kThreads), 1, 1},
                   .dependent = rope.tokens * ctas < kManyRows};
  const Kernel kernel = rope.x == DType::kBF16 ? kernel_for<__nv_bfloat16>(p) : kernel_for<float>(p);
  return launch(latent_norm_rope_kv_write_rows_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
