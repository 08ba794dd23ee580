// One CTA per token: rotates queries in place, rotates keys while it writes them to their page, and copies values. A thread
// handles a few adjacent pairs of one head, or 16 bytes of values. For e4m3 caches, keys and values are rounded once.
//
// Wins    always: it is the only kernel of RopeKvWrite. One launch instead of two, and keys are read once.
// Loses   up to 128 rows to the epilogues of qkv_rope_kv_write, which save this launch: 17 to 41 us per step of gpt-oss-20b on an H100
//         (docs/lab/cuda-step-launches.md).
// Limits  none beyond the contract; 16-byte accesses where sizes, row strides and addresses allow them.
// Source  original; the contract is ops/fused/rope_kv_write.h.
#include "backends/cuda/card.h"
#include "backends/cuda/norm_rope/rope_pairs.cuh"
#include "ops/fused/rope_kv_write.h"

namespace sluice::cuda {
namespace {

Refusal supports(const RopeKvWrite::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

struct Launcher {
  static Status enqueue(const RopeKvWrite::Problem&, const RopeKvWrite::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<RopeKvWrite> rope_kv_write_rows_sm90 = {
    .name = "cuda.rope_kv_write.rows_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<RopeKvWrite>,
    .workspace_bytes = no_workspace<RopeKvWrite>,
    .enqueue = enqueue_of<RopeKvWrite, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/norm_rope/cache_rows.cuh"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWarp = 32, kThreadsMax = 512;

// Strides are in elements, between rows.
struct Parameters {
  const int32_t *positions, *slot_of;
  const float* table;
  void* q;
  const void *k, *v;
  void *k_cache, *v_cache;
  int64_t q_stride, k_stride, v_stride;
  int64_t table_rows, slots;
  int heads, kv_heads, head_dim, page_size, half, first;
  int settled;
};

// C: element type of the caches.
template <int N, class X, class C, RopePairs kPairs>
__global__ void __launch_bounds__(kThreadsMax) rope_kv_write(const __grid_constant__ Parameters p) {
  constexpr int kWord = N > 1 ? 16 / sizeof(X) : 1;
  const int64_t token = blockIdx.x;
  tile::release_next();
  if (!p.settled) tile::wait_for_previous();
  const int64_t position = p.positions[token], slot = p.slot_of[token];
  const bool rotates = position >= 0 && position < p.table_rows, stored = slot >= 0 && slot < p.slots;
  const float* const table = p.table + (rotates ? position * p.half * 2 : 0);
  X* const q = static_cast<X*>(p.q) + token * p.q_stride;
  const X *const k = static_cast<const X*>(p.k) + token * p.k_stride, *const v = static_cast<const X*>(p.v) +
                                                                                 token * p.v_stride;
  C *const keys = static_cast<C*>(p.k_cache), *const values = static_cast<C*>(p.v_cache);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int of_head = p.half / N, groups = (p.heads + p.kv_heads) * of_head;
  const int head_words = p.head_dim / kWord, words = stored ? p.kv_heads * head_words : 0;
  if (p.settled) tile::wait_for_previous();
  for (int i = thread; i < groups + words; i += threads) {
    if (i < groups) {
      const int head = i / of_head, key = head - p.heads, pair = (i - head * of_head) * N;
      if (key < 0 ? !rotates : !stored) continue;
      X* const query = q + head * p.head_dim;
      const X* const from = key < 0 ? query : k + key * p.head_dim;
      float a[N], b[N];
      Pairs<N, const X, kPairs>{from + p.first, p.half, pair}.load(a, b);
      if (rotates) rotate_pairs(a, b, table + 2 * pair);
      if (key < 0) {
        Pairs<N, X, kPairs>{query + p.first, p.half, pair}.store(a, b);
      } else {
        Pairs<N, C, kPairs>{keys + cache_row(p, slot, key) + p.first, p.half, pair}.store(a, b);
      }
    } else {
      const int word = i - groups, head = word / head_words, at = (word - head * head_words) * kWord;
      move<kWord>(v + head * p.head_dim + at, values + cache_row(p, slot, head) + at);
    }
  }
  // Elements of the keys that are not rotated.
  const int rest = p.head_dim - 2 * p.half;
  for (int i = thread; i < (stored ? p.kv_heads * rest : 0); i += threads) {
    const int head = i / rest, of = i - head * rest, at = of < p.first ? of : of + 2 * p.half;
    move<1>(k + head * p.head_dim + at, keys + cache_row(p, slot, head) + at);
  }
}

using Kernel = void (*)(Parameters);

template <int N, class X, class C>
Kernel kernel_for(RopePairs pairs) {
  return pairs == RopePairs::kHalves ? rope_kv_write<N, X, C, RopePairs::kHalves>
                                     : rope_kv_write<N, X, C, RopePairs::kInterleaved>;
}
template <int N, class X>
Kernel kernel_for(const RopeKvWrite::Problem& p) {
  return p.cache == CacheType::kE4M3 ? kernel_for<N, X, E4M3>(p.rope.pairs)
                                     : kernel_for<N, X, X>(p.rope.pairs);
}
template <int N>
Kernel kernel_for(const RopeKvWrite::Problem& p) {
  return p.rope.x == DType::kBF16 ? kernel_for<N, __nv_bfloat16>(p) : kernel_for<N, float>(p);
}

bool aligned(const RopeKvWrite::Args& a) {
  constexpr int64_t kBytes = 16;
  const auto starts = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % kBytes == 0; };
  const auto rows = [](const Tensor& t) { return bytes_of(t.dtype, t.stride[0]) % kBytes == 0; };
  return starts(a.table) && starts(a.q) && rows(a.q) && starts(a.k) && rows(a.k) && starts(a.v) &&
         rows(a.v) && starts(a.k_cache) && starts(a.v_cache);
}

// True if a thread's 8 elements of e4m3 begin at multiples of 8 bytes. For f32, 16 bytes are only four elements.
bool stores_fit(const RopeKvWrite::Problem& p) {
  return p.cache == CacheType::kSame || (p.rope.head_dim % 8 == 0 && p.rope.first % 8 == 0);
}

Status Launcher::enqueue(const RopeKvWrite::Problem& p, const RopeKvWrite::Args& a, Workspace,
                         Stream stream) {
  const Rope::Problem& rope = p.rope;
  if (rope.tokens == 0) return {};
  const Parameters parameters{.positions = a.positions.as<const int32_t>(),
                              .slot_of = a.slot_of.as<const int32_t>(),
                              .table = a.table.as<const float>(),
                              .q = a.q.data,
                              .k = a.k.data,
                              .v = a.v.data,
                              .k_cache = a.k_cache.data,
                              .v_cache = a.v_cache.data,
                              .q_stride = a.q.stride[0],
                              .k_stride = a.k.stride[0],
                              .v_stride = a.v.stride[0],
                              .table_rows = rope.table_rows,
                              .slots = p.pages * p.page_size,
                              .heads = static_cast<int>(rope.heads),
                              .kv_heads = static_cast<int>(p.kv_heads),
                              .head_dim = static_cast<int>(rope.head_dim),
                              .page_size = static_cast<int>(p.page_size),
                              .half = static_cast<int>(rope.rotary / 2),
                              .first = static_cast<int>(rope.first),
                              .settled = p.settled};
  const int each = pairs_each(rope, aligned(a) && stores_fit(p));
  const Kernel kernel = each == kPairsApart   ? kernel_for<kPairsApart>(p)
                        : each == kPairsWoven ? kernel_for<kPairsWoven>(p)
                                              : kernel_for<1>(p);
  const int64_t word = each > 1 ? 16 / bytes_of(rope.x, 1) : 1;
  const int64_t work =
      (rope.heads + p.kv_heads) * (rope.rotary / 2) / each + p.kv_heads * rope.head_dim / word;
  const int64_t threads = std::min<int64_t>((work + kWarp - 1) / kWarp * kWarp, kThreadsMax);
  const Launch how{.grid = {static_cast<unsigned>(rope.tokens), 1, 1},
                   .block = {static_cast<unsigned>(threads), 1, 1}};
  return launch(rope_kv_write_rows_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
