// A team of lanes (a power of two) handles a head of a token; a lane has eight adjacent elements. The team
// adds up its squares and normalizes its elements. Lanes exchange the partners of their elements, rotate, and
// write queries in place and keys to their page. Values are copied to their page. Normalized elements are
// rounded to the type of q before the rotation. Squares are added in the order of cuda.rms_norm.rows_sm90, so
// for 16-byte rows of several heads the result is bitwise equal to the unfused operations' result.
// Wins    where it accepts the problem: one launch instead of three per layer makes decode steps of Qwen3-30B-A3B 6% shorter at one
//         sequence, 2% at 8, 1% at 64 (docs/lab/cuda-qwen3.md). Queries and keys are read once.
// Limits  see supports() below.
// Source  original; the contract is ops/fused/qk_norm_rope_kv_write.h.
#include "backends/cuda/card.h"
#include "backends/cuda/norm_rope/rope_pairs.cuh"
#include "ops/fused/qk_norm_rope_kv_write.h"

namespace sluice::cuda {
namespace {

constexpr int64_t kEach = 8, kWarp = 32;  // elements per lane

Refusal supports(const QkNormRopeKvWrite::Problem& p, const DeviceInfo& d) {
  const Rope::Problem& rope = p.rotation.rope;
  Refusal r;
  need_sm90(r, d);
  need_multiple(r, "head_dim", rope.head_dim, kEach, "eight elements of a lane");
  r.need(rope.head_dim <= kEach * kWarp, "head_dim <= 256 (a head in the registers of a warp)", "head_dim",
         rope.head_dim);
  need_multiple(r, "first", rope.first, kEach, "eight elements of a lane");
  if (rope.pairs == RopePairs::kHalves) {
    need_multiple(r, "rotary", rope.rotary, 2 * kEach, "halves of eight elements of a lane");
  } else {
    need_multiple(r, "rotary", rope.rotary, kEach, "eight elements of a lane");
  }
  r.need(!p.x_unaligned, "rows at multiples of 16 bytes", "x_unaligned=1");
  return r;
}

struct Launcher {
  static Status enqueue(const QkNormRopeKvWrite::Problem&, const QkNormRopeKvWrite::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<QkNormRopeKvWrite> qk_norm_rope_kv_write_rows_sm90 = {
    .name = "cuda.qk_norm_rope_kv_write.rows_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<QkNormRopeKvWrite>,
    .workspace_bytes = no_workspace<QkNormRopeKvWrite>,
    .enqueue = enqueue_of<QkNormRopeKvWrite, Launcher>(),
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include <bit>

#include "backends/cuda/launch.h"
#include "backends/cuda/norm_rope/cache_rows.cuh"
#include "backends/cuda/norm_rope/row_norm.cuh"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {
namespace {

constexpr int N = static_cast<int>(kEach), kThreads = 128;
constexpr unsigned kAllLanes = 0xffffffffu;

// Strides are in elements, between rows.
struct Parameters {
  const int32_t *positions, *slot_of;
  const float* table;
  void* q;
  const void *k, *v, *q_norm, *k_norm;
  void *k_cache, *v_cache;
  int64_t q_stride, k_stride, v_stride;
  int64_t table_rows, slots;
  int heads, kv_heads, head_dim, page_size, half, first;
  int team_bits;  // log2 of the lanes per head
  float eps;
  int settled;
};

// The sum over the lanes of a team.
__device__ __forceinline__ float team_sum(float sum, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return sum;
}

// The (cos, sin) of a lane's elements: of eight pairs if partners are half a head apart, of four pairs if they are adjacent.
template <RopePairs kPairs>
struct Angles {
  static constexpr int kFloats = kPairs == RopePairs::kHalves ? 2 * N : N;
  float at[kFloats];

  // place: the index of the lane's first element among the rotated elements.
  __device__ __forceinline__ void load(const float* row, int place, int half) {
    if constexpr (kPairs == RopePairs::kHalves) {
      tile::load(at, row + 2 * (place < half ? place : place - half));
    } else {
      tile::load(at, row + place);
    }
  }
};

// Rotates a lane's elements if `rotates`. Called by every lane of the warp.
template <RopePairs kPairs>
__device__ __forceinline__ void rotate(float (&x)[N], const Angles<kPairs>& angles, int place, int half,
                                       bool rotates) {
  if constexpr (kPairs == RopePairs::kHalves) {
    const bool second = place >= half;
    const int lane = static_cast<int>(threadIdx.x % kWarp), partner = lane + (second ? -half : half) / N;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float other = __shfl_sync(kAllLanes, x[i], partner);
      if (rotates) x[i] = rotated(x[i], other, second, angles.at[2 * i], angles.at[2 * i + 1]);
    }
  } else if (rotates) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const float a = x[i], b = x[i + 1], cos = angles.at[i], sin = angles.at[i + 1];
      x[i] = rotated(a, b, false, cos, sin), x[i + 1] = rotated(b, a, true, cos, sin);
    }
  }
}

// C: element type of the caches. blockIdx.y: index of the CTA among the CTAs of a token, for queries, then keys, then values.
template <class X, class W, class C, RopePairs kPairs>
__global__ void __launch_bounds__(kThreads) qk_norm_rope_kv_write(const __grid_constant__ Parameters p) {
  const int64_t token = blockIdx.x;
  const int thread = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  const int head = thread >> p.team_bits, lanes = 1 << p.team_bits, at = (thread & (lanes - 1)) * N;
  const int key = head - p.heads, value = key - p.kv_heads;
  const bool query = key < 0, mine = at < p.head_dim && value < p.kv_heads, norms = mine && value < 0;
  tile::release_next();
  float w[N] = {};
  if (norms) tile::load(w, static_cast<const W*>(query ? p.q_norm : p.k_norm) + at);
  if (!p.settled) tile::wait_for_previous();
  const int64_t position = p.positions[token], slot = p.slot_of[token];
  const bool stored = slot >= 0 && slot < p.slots;
  const int place = at - p.first;
  const bool rotates = norms && position >= 0 && position < p.table_rows && place >= 0 && place < 2 * p.half;
  Angles<kPairs> angles;
  if (rotates) angles.load(p.table + position * p.half * 2, place, p.half);
  if (p.settled) tile::wait_for_previous();

  X* const q = static_cast<X*>(p.q) + token * p.q_stride + head * p.head_dim + at;
  const X* const k = static_cast<const X*>(p.k) + token * p.k_stride + key * p.head_dim + at;
  float x[N] = {};
  if (norms && (query || stored)) tile::load(x, query ? q : k);
  if (mine && !norms && stored) {
    constexpr int kWord = 16 / sizeof(X);
    const X* const from = static_cast<const X*>(p.v) + token * p.v_stride + value * p.head_dim + at;
    C* const to = static_cast<C*>(p.v_cache) + cache_row(p, slot, value) + at;
#pragma unroll
    for (int i = 0; i < N; i += kWord) move<kWord>(from + i, to + i);
  }
  const float inverse = inverse_root(team_sum(squares(x), lanes), p.head_dim, p.eps);
  scale(x, x, inverse, w);
#pragma unroll
  for (float& element : x) element = tile::to_f32(tile::from_f32<X>(element));
  rotate<kPairs>(x, angles, place, p.half, rotates);

  if (norms && query) {
    tile::store(q, x);
  } else if (norms && stored) {
    tile::store(static_cast<C*>(p.k_cache) + cache_row(p, slot, key) + at, x);
  }
}

using Kernel = void (*)(Parameters);

template <class X, class W, class C>
Kernel kernel_for(RopePairs pairs) {
  return pairs == RopePairs::kHalves ? qk_norm_rope_kv_write<X, W, C, RopePairs::kHalves>
                                     : qk_norm_rope_kv_write<X, W, C, RopePairs::kInterleaved>;
}
template <class X, class W>
Kernel kernel_for(const QkNormRopeKvWrite::Problem& p) {
  return p.rotation.cache == CacheType::kE4M3 ? kernel_for<X, W, E4M3>(p.rotation.rope.pairs)
                                              : kernel_for<X, W, X>(p.rotation.rope.pairs);
}
template <class X>
Kernel kernel_for(const QkNormRopeKvWrite::Problem& p) {
  return p.norm_w == DType::kBF16 ? kernel_for<X, __nv_bfloat16>(p) : kernel_for<X, float>(p);
}

Status Launcher::enqueue(const QkNormRopeKvWrite::Problem& p, const QkNormRopeKvWrite::Args& a, Workspace,
                         Stream stream) {
  const Rope::Problem& rope = p.rotation.rope;
  if (rope.tokens == 0) return {};
  const auto lanes = std::bit_ceil(static_cast<uint64_t>(rope.head_dim / kEach));
  const Parameters parameters{.positions = a.positions.as<const int32_t>(),
                              .slot_of = a.slot_of.as<const int32_t>(),
                              .table = a.table.as<const float>(),
                              .q = a.q.data,
                              .k = a.k.data,
                              .v = a.v.data,
                              .q_norm = a.q_norm.data,
                              .k_norm = a.k_norm.data,
                              .k_cache = a.k_cache.data,
                              .v_cache = a.v_cache.data,
                              .q_stride = a.q.stride[0],
                              .k_stride = a.k.stride[0],
                              .v_stride = a.v.stride[0],
                              .table_rows = rope.table_rows,
                              .slots = p.rotation.pages * p.rotation.page_size,
                              .heads = static_cast<int>(rope.heads),
                              .kv_heads = static_cast<int>(p.rotation.kv_heads),
                              .head_dim = static_cast<int>(rope.head_dim),
                              .page_size = static_cast<int>(p.rotation.page_size),
                              .half = static_cast<int>(rope.rotary / 2),
                              .first = static_cast<int>(rope.first),
                              .team_bits = std::countr_zero(lanes),
                              .eps = static_cast<float>(p.eps),
                              .settled = p.rotation.settled};
  const int64_t threads = (rope.heads + 2 * p.rotation.kv_heads) * static_cast<int64_t>(lanes);
  const int64_t ctas = (threads + kThreads - 1) / kThreads;
  const Launch how{.grid = {static_cast<unsigned>(rope.tokens), static_cast<unsigned>(ctas), 1},
                   .block = {kThreads, 1, 1},
                   .dependent = rope.tokens * ctas < kManyRows};
  const Kernel kernel = rope.x == DType::kBF16 ? kernel_for<__nv_bfloat16>(p) : kernel_for<float>(p);
  return launch(qk_norm_rope_kv_write_rows_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
