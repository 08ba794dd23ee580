// Writes keys and values into their pages: a thread copies one word of one token, 16 bytes where everything is aligned.
//
// Wins    always so far: it moves its bytes once.
// Loses   to a write in the epilogue of the projection, once there is one.
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

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;

// Sizes and strides in words.
struct Parameters {
  const void *k, *v;
  void *k_cache, *v_cache;
  const int32_t* slot_of;
  int64_t k_stride, v_stride;  // from row to row
  int64_t tokens, slots;
  int kv_heads, page_size, head_words;
};

// blockIdx.y: 0 keys, 1 values. threadIdx.y: which of the CTA's tokens.
template <class Word>
__global__ void __launch_bounds__(kThreads) kv_write(const __grid_constant__ Parameters p) {
  tile::release_next();
  tile::wait_for_previous();
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (token >= p.tokens) return;
  const int64_t slot = p.slot_of[token];
  if (slot < 0 || slot >= p.slots) return;
  const bool values = blockIdx.y == 1;
  const Word* from =
      static_cast<const Word*>(values ? p.v : p.k) + token * (values ? p.v_stride : p.k_stride);
  const int64_t page = slot / p.page_size, place = slot % p.page_size;
  Word* to = static_cast<Word*>(values ? p.v_cache : p.k_cache) +
             (page * p.kv_heads * p.page_size + place) * p.head_words;
  for (int i = threadIdx.x; i < p.kv_heads * p.head_words; i += blockDim.x) {
    const int head = i / p.head_words;
    to[static_cast<int64_t>(head) * p.page_size * p.head_words + (i - head * p.head_words)] = from[i];
  }
}

// Whether a tensor's address and rows are multiples of `bytes`.
bool aligned(const Tensor& t, int64_t bytes) {
  return !t.present() || (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(bytes) == 0 &&
                          bytes_of(t.dtype, t.stride[0]) % bytes == 0);
}

Status Launcher::enqueue(const KvWrite::Problem& p, const KvWrite::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  constexpr int64_t kWide = 16;
  const int64_t element = bytes_of(p.kv, 1), head_bytes = p.head_dim * element;
  bool wide = head_bytes % kWide == 0;
  for (const Tensor& t : {a.k, a.v, a.k_cache, a.v_cache}) wide &= aligned(t, kWide);
  const int64_t word = wide ? kWide : element;
  const Parameters parameters{.k = a.k.data,
                              .v = a.v.data,
                              .k_cache = a.k_cache.data,
                              .v_cache = a.v_cache.data,
                              .slot_of = a.slot_of.as<const int32_t>(),
                              .k_stride = a.k.stride[0] * element / word,
                              .v_stride = p.values ? a.v.stride[0] * element / word : 0,
                              .tokens = p.tokens,
                              .slots = p.pages * p.page_size,
                              .kv_heads = static_cast<int>(p.kv_heads),
                              .page_size = static_cast<int>(p.page_size),
                              .head_words = static_cast<int>(head_bytes / word)};
  const int64_t words = p.kv_heads * parameters.head_words;
  const int64_t x = std::min<int64_t>(kThreads, (words + 31) / 32 * 32), y = kThreads / x;
  const Launch how{.grid = {static_cast<unsigned>((p.tokens + y - 1) / y), p.values ? 2u : 1u, 1},
                   .block = {static_cast<unsigned>(x), static_cast<unsigned>(y), 1}};
  const auto kernel = wide ? kv_write<uint4> : element == 2 ? kv_write<uint16_t> : kv_write<uint32_t>;
  return launch(kv_write_rows_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
