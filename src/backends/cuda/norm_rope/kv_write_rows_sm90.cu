// Writes keys and values into their pages. A thread copies one word of one token, of 16 bytes if
// everything is aligned. For an e4m3 cache it reads a word, too, and rounds its elements to e4m3.
//
// Wins    always: it is the only kernel of KvWrite. It moves each byte once.
// Loses   to the fused kernels of rope_kv_write, qk_norm_rope_kv_write and qkv_rope_kv_write, which also
//         write the cache and save one launch.
// Limits  none beyond the contract.
// Source  original; the contract is ops/kv_write.h.
#include "backends/cuda/card.h"
#include "ops/kv_write.h"

namespace sluice::cuda {
namespace {

Refusal supports(const KvWrite::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

struct Launcher {
  static Status enqueue(const KvWrite::Problem&, const KvWrite::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<KvWrite> kv_write_rows_sm90 = {
    .name = "cuda.kv_write.rows_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<KvWrite>,
    .workspace_bytes = no_workspace<KvWrite>,
    .enqueue = enqueue_of<KvWrite, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/e4m3.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;

// A thread's unit of work: a word that is copied.
template <class Word>
struct Copied {
  using From = Word;
  using To = Word;
  static __device__ __forceinline__ void move(const From* from, To* to) { *to = *from; }
};
// A thread's unit of work: N elements that are rounded to e4m3.
template <class X, int N>
struct Rounded {
  struct From {
    X element[N];
  };
  struct To {
    E4M3 element[N];
  };
  static __device__ __forceinline__ void move(const From* from, To* to) {
    float values[N];
    tile::load(values, from->element);
    tile::store(to->element, values);
  }
};

// Sizes and strides are counted in a thread's units of work.
struct Parameters {
  const void *k, *v;
  void *k_cache, *v_cache;
  const int32_t* slot_of;
  int64_t k_stride, v_stride;  // between rows
  int64_t tokens, slots;
  int kv_heads, page_size, head_units;
};

// blockIdx.y: 0 for keys, 1 for values. threadIdx.y: index of the token in the CTA.
template <class Unit>
__global__ void __launch_bounds__(kThreads) kv_write(const __grid_constant__ Parameters p) {
  tile::release_next();
  tile::wait_for_previous();
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (token >= p.tokens) return;
  const int64_t slot = p.slot_of[token];
  if (slot < 0 || slot >= p.slots) return;
  const bool values = blockIdx.y == 1;
  const auto* from = static_cast<const typename Unit::From*>(values ? p.v : p.k) +
                     token * (values ? p.v_stride : p.k_stride);
  const int64_t page = slot / p.page_size, place = slot % p.page_size;
  auto* to = static_cast<typename Unit::To*>(values ? p.v_cache : p.k_cache) +
             (page * p.kv_heads * p.page_size + place) * p.head_units;
  for (int i = threadIdx.x; i < p.kv_heads * p.head_units; i += blockDim.x) {
    const int head = i / p.head_units;
    Unit::move(from + i,
               to + static_cast<int64_t>(head) * p.page_size * p.head_units + (i - head * p.head_units));
  }
}

// True if a tensor's address and row stride are multiples of `bytes`.
bool aligned(const Tensor& t, int64_t bytes) {
  return !t.present() || (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(bytes) == 0 &&
                          bytes_of(t.dtype, t.stride[0]) % bytes == 0);
}

auto rounding_kernel(DType type, bool wide) {
  if (type == DType::kBF16)
    return wide ? kv_write<Rounded<__nv_bfloat16, 8>> : kv_write<Rounded<__nv_bfloat16, 1>>;
  return wide ? kv_write<Rounded<float, 4>> : kv_write<Rounded<float, 1>>;
}

Status Launcher::enqueue(const KvWrite::Problem& p, const KvWrite::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  constexpr int64_t kWide = 16;
  const int64_t element = bytes_of(p.kv, 1), head_bytes = p.head_dim * element;
  const bool narrow = p.cache == CacheType::kE4M3;
  bool wide = head_bytes % kWide == 0;
  for (const Tensor& t : {a.k, a.v}) wide &= aligned(t, kWide);
  for (const Tensor& t : {a.k_cache, a.v_cache}) wide &= aligned(t, narrow ? kWide / element : kWide);
  const int64_t unit = wide ? kWide : element;
  const Parameters parameters{.k = a.k.data,
                              .v = a.v.data,
                              .k_cache = a.k_cache.data,
                              .v_cache = a.v_cache.data,
                              .slot_of = a.slot_of.as<const int32_t>(),
                              .k_stride = a.k.stride[0] * element / unit,
                              .v_stride = p.values ? a.v.stride[0] * element / unit : 0,
                              .tokens = p.tokens,
                              .slots = p.pages * p.page_size,
                              .kv_heads = static_cast<int>(p.kv_heads),
                              .page_size = static_cast<int>(p.page_size),
                              .head_units = static_cast<int>(head_bytes / unit)};
  const int64_t units = p.kv_heads * parameters.head_units;
  const int64_t x = std::min<int64_t>(kThreads, (units + 31) / 32 * 32), y = kThreads / x;
  const Launch how{.grid = {static_cast<unsigned>((p.tokens + y - 1) / y), p.values ? 2u : 1u, 1},
                   .block = {static_cast<unsigned>(x), static_cast<unsigned>(y), 1}};
  const auto copying = wide           ? kv_write<Copied<uint4>>
                       : element == 2 ? kv_write<Copied<uint16_t>>
                                      : kv_write<Copied<uint32_t>>;
  const auto kernel = narrow ? rounding_kernel(p.kv, wide) : copying;
  return launch(kv_write_rows_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
