// Queries, keys and values of up to eight rows by the kernel whose weights stream past (linear_stream.cuh). A unit of work is eight
// features of a head and the eight that turn with them, half a head further: one box of TMA, and two lanes of a warp at the end. Sums
// are rounded to bf16 as the projection alone does it, so a row's bits are those of the two operations in turn.
//
// Wins    one to some rows: no launch between the projection and attention, which is a microsecond or two of a layer's fifty.
// Loses   more rows than its registers hold: the parts in turn.
// Limits  bf16, heads that turn as a whole, in halves. Rows of x that are not 16-byte aligned go through the parts.
// Bytes   w once, x once a CTA.
// Source  original; the contract is ops/qkv_rope_kv_write.h.
#include "ops/qkv_rope_kv_write.h"

#include "backends/cuda/kernels/linear_stream.h"
#include "ops/bounds.h"

namespace sluice::cuda {
namespace {

Refusal supports(const QkvRopeKvWrite::Problem& p, const DeviceInfo& d) {
  Refusal r;
  const Rope::Problem& rope = p.rope.rope;
  const Linear::Problem linear = QkvRopeKvWrite::project(p);
  need_linear_operands(r, linear, d);
  need_stream_rows(r, linear.tokens);
  need_multiple(r, "head_dim", rope.head_dim, kStreamSlab, "units of eight pairs");
  r.need(rope.rotary == rope.head_dim, "heads that turn as a whole", "rotary", rope.rotary);
  r.need(rope.pairs == RopePairs::kHalves, "pairs=halves (a box of eight and eight features)",
         "pairs=" + std::string(word(rope.pairs)));
  need_between(r, "page_size", p.rope.page_size, 1, 1 << 16);
  return r;
}

std::vector<Config> configs(const QkvRopeKvWrite::Problem& p, const DeviceInfo& d, const Policy&) {
  constexpr double kTurnUs = 0.2;  // a guess: less than a launch of its own, and not measured apart
  const Linear::Problem linear = QkvRopeKvWrite::project(p);
  return {Config{.cost_us = linear_stream_us(linear, d) + kTurnUs,
                 .launches = {linear_stream_launch(linear, d, kStreamSlab)}}};
}

std::string launch_text(const QkvRopeKvWrite::Problem&, const KernelLaunch& l) {
  return linear_stream_text(l);
}

struct Launcher {
  static Status enqueue(const QkvRopeKvWrite::Problem&, std::span<const KernelLaunch>,
                        const QkvRopeKvWrite::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<QkvRopeKvWrite> qkv_rope_kv_write_stream_sm90 = {
    .name = "cuda.qkv_rope_kv_write.stream_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .enqueue_config = enqueue_config_of<QkvRopeKvWrite, Launcher>(),
    .launch_text = launch_text,
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/kernels/linear_stream.cuh"
#include "backends/cuda/tile/divisor.cuh"
#include "backends/cuda/tile/e4m3.cuh"
#include "backends/cuda/tile/tensor_map.h"

namespace sluice::cuda {

extern const Candidate<RopeKvWrite> rope_kv_write_rows_sm90;

namespace {

// C: elements of the caches.
template <class C>
struct TurnedEnd {
  struct Maps {
    CUtensorMap halves;
    tile::Divisor eights;  // of half a head
  };
  static constexpr bool kEights = false;
  struct Out {
    const stream::B16* bias;  // null: none
    const int32_t *positions, *slot_of;
    const float* table;
    stream::B16* qkv;
    C *k_cache, *v_cache;
    int64_t qkv_stride, table_rows, slots;
    tile::Divisor page_size, eights;
    int tokens, heads, kv_heads, half;
    int settled;
  };

  static __device__ __forceinline__ void prefetch(const Maps& w) { tile::prefetch_map(w.halves); }
  static __device__ __forceinline__ void fetch(bool, uint64_t policy, uint32_t to, const Maps& w, int k,
                                               int feature, uint32_t full) {
    const int unit = feature / stream::kSlab, head = unit / w.eights;
    tile::copy_box_by(policy, to, w.halves, k, unit - head * w.eights, head, full);
  }

  struct Token {
    int position, slot;  // -1: none

    __device__ __forceinline__ explicit Token(const Out& out) : position(-1), slot(-1) {
      const int token = stream::token_of_thread();
      if (!out.settled) tile::wait_for_previous();
      if (token >= out.tokens) return;
      const int at = out.positions[token], to = out.slot_of[token];
      if (at >= 0 && at < out.table_rows) position = at;
      if (to >= 0 && to < out.slots) slot = to;
    }
  };

  // The element of this thread. Lanes r and r + 8 of a half-warp have the two features of a pair.
  struct Place {
    int head, pair;
    bool second;

    __device__ __forceinline__ Place(const Out& out, int first) {
      const int unit = first / stream::kSlab, row = stream::row_of_thread();
      head = unit / out.eights;
      pair = (unit - head * out.eights) * stream::kEight + row % stream::kEight;
      second = row >= stream::kEight;
    }
    __device__ __forceinline__ int of_head(const Out& out) const { return pair + (second ? out.half : 0); }
    __device__ __forceinline__ bool turns(const Out& out, const Token& token) const {
      return token.position >= 0 && head < out.heads + out.kv_heads;
    }
  };

  class Unit {
   public:
    __device__ __forceinline__ Unit(const Out& out, const Token& token, int first, int) {
      const Place at(out, first);
      const bool turns = at.turns(out, token);
      const int feature = at.head * 2 * out.half + at.of_head(out);
      bias_ = tile::load_weight(out.bias + feature, out.bias != nullptr);
      const int64_t angle = (static_cast<int64_t>(turns ? token.position : 0) * out.half + at.pair) * 2;
      cos_ = __uint_as_float(tile::load_weight(out.table + angle, turns));
      sin_ = __uint_as_float(tile::load_weight(out.table + angle + 1, turns));
    }
    __device__ __forceinline__ void store(const Out& out, const Token& token, int first, float sum) const {
      const Place at(out, first);
      sum += tile::weight_value<stream::B16>(bias_);
      float value = __bfloat162float(__float2bfloat16_rn(sum));
      const float other = __shfl_xor_sync(0xffffffffu, value, stream::kEight);
      if (at.turns(out, token)) value = fmaf(value, cos_, at.second ? other * sin_ : -(other * sin_));
      const int row = stream::token_of_thread();
      if (row >= out.tokens) return;
      if (at.head < out.heads) {
        out.qkv[row * out.qkv_stride + at.head * 2 * out.half + at.of_head(out)] = __float2bfloat16_rn(value);
      } else if (token.slot >= 0) {
        const bool key = at.head < out.heads + out.kv_heads;
        const int page = token.slot / out.page_size, place = token.slot - page * out.page_size;
        const int kv_head = at.head - out.heads - (key ? 0 : out.kv_heads);
        const int64_t to = (static_cast<int64_t>(page) * out.kv_heads + kv_head) * out.page_size + place;
        (key ? out.k_cache : out.v_cache)[to * 2 * out.half + at.of_head(out)] = tile::from_f32<C>(value);
      }
    }

   private:
    uint32_t bias_;
    float cos_, sin_;
  };
};

template <class C>
Status launch_turned(const QkvRopeKvWrite::Problem& p, const KernelLaunch& of, const QkvRopeKvWrite::Args& a,
                     Stream to) {
  using End = TurnedEnd<C>;
  const Rope::Problem& rope = p.rope.rope;
  const auto half = static_cast<int>(rope.head_dim / 2);
  typename End::Maps w{.halves = {}, .eights = tile::Divisor(half / stream::kEight)};
  SLUICE_TRY(tile::map_halves(w.halves, a.w, rope.head_dim));
  const typename End::Out out{.bias = p.bias ? a.bias.as<const stream::B16>() : nullptr,
                              .positions = a.positions.as<const int32_t>(),
                              .slot_of = a.slot_of.as<const int32_t>(),
                              .table = a.table.as<const float>(),
                              .qkv = a.qkv.as<stream::B16>(),
                              .k_cache = static_cast<C*>(a.k_cache.data),
                              .v_cache = static_cast<C*>(a.v_cache.data),
                              .qkv_stride = a.qkv.stride[0],
                              .table_rows = rope.table_rows,
                              .slots = p.rope.pages * p.rope.page_size,
                              .page_size = tile::Divisor(static_cast<int>(p.rope.page_size)),
                              .eights = w.eights,
                              .tokens = static_cast<int>(rope.tokens),
                              .heads = static_cast<int>(rope.heads),
                              .kv_heads = static_cast<int>(p.rope.kv_heads),
                              .half = half,
                              .settled = p.rope.settled};
  return stream::launch_stream<End>(qkv_rope_kv_write_stream_sm90.name, QkvRopeKvWrite::project(p), of, a.x,
                                    w, out, to);
}

Status Launcher::enqueue(const QkvRopeKvWrite::Problem& p, std::span<const KernelLaunch> launches,
                         const QkvRopeKvWrite::Args& a, Workspace, Stream stream) {
  if (p.rope.rope.tokens == 0) return {};
  if (!aligned_rows(a.x, tile::kMapStrideBytes)) {
    SLUICE_TRY(launch_linear_fma(QkvRopeKvWrite::project(p), QkvRopeKvWrite::project(a), stream));
    return rope_kv_write_rows_sm90.enqueue(p.rope, QkvRopeKvWrite::turn(p, a), {}, stream);
  }
  return p.rope.cache == CacheType::kE4M3 ? launch_turned<E4M3>(p, launches[0], a, stream)
                                          : launch_turned<stream::B16>(p, launches[0], a, stream);
}

}  // namespace

}  // namespace sluice::cuda
#endif
