// Queries, keys and values of up to eight rows, by the kernel that streams the weights (linear_stream.cuh). A unit of work
// is eight features of a head and their partners, half a head further: one TMA box, and two lanes of a warp in the epilogue.
// Sums are rounded to bf16 as in the separate projection, so the result is bitwise equal to the unfused operations' result.
//
// Wins    one to eight rows: it saves a launch between projection and attention, 1 to 2 us of a layer's 50 us.
// Loses   nowhere, but it refuses more than eight rows.
// Limits  bf16, heads that are rotated as a whole, with pairs half a head apart.
// Bytes   w once; x once per CTA.
// Source  original; the contract is ops/fused/qkv_rope_kv_write.h.
#include "backends/cuda/norm_rope/qkv_rope_kv_write.h"

#include "backends/cuda/linear/linear_stream.h"

namespace sluice::cuda {
namespace {

Refusal supports(const QkvRopeKvWrite::Problem& p, const DeviceInfo& d) {
  Refusal r;
  const Linear::Problem linear = QkvRopeKvWrite::project(p);
  need_linear_operands(r, linear, d);
  need_stream_rows(r, linear.tokens);
  need_rotated_heads(r, p, kStreamSlab, "units of eight pairs");
  return r;
}

std::vector<Config> configs(const QkvRopeKvWrite::Problem& p, const DeviceInfo& d) {
  const Linear::Problem linear = QkvRopeKvWrite::project(p);
  return {Config{.cost_us = linear_stream_us(linear, d) + kRotateUs,
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
#include "backends/cuda/linear/linear_stream.cuh"
#include "backends/cuda/norm_rope/qkv_rope_kv_write.cuh"
#include "backends/cuda/tile/tensor_map.h"

namespace sluice::cuda {
namespace {

// Rotates heads, and stores queries, keys and values.
template <class C>
struct TurnedEnd {
  struct Maps {
    CUtensorMap halves;
    tile::Divisor eights;  // groups of eight features in half a head
  };
  static constexpr bool kEights = false;
  struct Out : RotatedOut<C> {
    tile::Divisor eights;
  };

  static __device__ __forceinline__ void prefetch(const Maps& w) { tile::prefetch_map(w.halves); }
  static __device__ __forceinline__ void fetch(bool, uint64_t policy, uint32_t to, const Maps& w, int k,
                                               int feature, uint32_t full) {
    const int unit = feature / stream::kSlab, head = unit / w.eights;
    tile::copy_box_by(policy, to, w.halves, k, unit - head * w.eights, head, full);
  }

  struct Token : RotatedOut<C>::Token {
    __device__ __forceinline__ explicit Token(const Out& out)
        : RotatedOut<C>::Token(out, stream::token_of_thread()) {}
  };

  // The element that this thread computes. Lanes r and r + 8 of a half-warp have the two features of a pair.
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
  };

  class Unit {
   public:
    __device__ __forceinline__ Unit(const Out& out, const Token& token, int first, int) {
      const Place at(out, first);
      const bool rotates = out.rotates(token, at.head);
      bias_ = tile::load_weight(out.bias + out.feature(at.head, at.of_head(out)), out.bias != nullptr);
      const int64_t angle = out.angle(token, at.head, at.pair);
      cos_ = __uint_as_float(tile::load_weight(out.table + angle, rotates));
      sin_ = __uint_as_float(tile::load_weight(out.table + angle + 1, rotates));
    }
    __device__ __forceinline__ void store(const Out& out, const Token& token, int first, float sum) const {
      const Place at(out, first);
      sum += tile::weight_value<stream::B16>(bias_);
      float value[] = {__bfloat162float(__float2bfloat16_rn(sum))};
      const float other = __shfl_xor_sync(0xffffffffu, value[0], stream::kEight);
      if (out.rotates(token, at.head)) value[0] = rotated(value[0], other, at.second, cos_, sin_);
      out.store(stream::token_of_thread(), token, at.head, at.of_head(out), value);
    }

   private:
    uint32_t bias_;
    float cos_, sin_;
  };
};

template <class C>
Status launch_rotated(const QkvRopeKvWrite::Problem& p, const KernelLaunch& of, const QkvRopeKvWrite::Args& a,
                      Stream to) {
  using End = TurnedEnd<C>;
  const int64_t head_dim = p.rope.rope.head_dim;
  typename End::Maps w{.halves = {},
                       .eights = tile::Divisor(static_cast<int>(head_dim / 2) / stream::kEight)};
  SLUICE_TRY(tile::map_halves(w.halves, a.w, head_dim, stream::kEight));
  typename End::Out out{};
  static_cast<RotatedOut<C>&>(out) = rotated_out<C>(p, a);
  out.eights = w.eights;
  return stream::launch_stream<End>(qkv_rope_kv_write_stream_sm90.name, QkvRopeKvWrite::project(p), of, a.x,
                                    w, out, to);
}

Status Launcher::enqueue(const QkvRopeKvWrite::Problem& p, std::span<const KernelLaunch> launches,
                         const QkvRopeKvWrite::Args& a, Workspace, Stream stream) {
  if (p.rope.rope.tokens == 0) return {};
  return p.rope.cache == CacheType::kE4M3 ? launch_rotated<E4M3>(p, launches[0], a, stream)
                                          : launch_rotated<stream::B16>(p, launches[0], a, stream);
}

}  // namespace

}  // namespace sluice::cuda
#endif
