// The end of linear_stream.cuh that turns heads and stores keys and values, and its launch.
#pragma once
#include "backends/cuda/kernels/linear_stream.cuh"
#include "backends/cuda/kernels/qkv_rope_kv_write.cuh"
#include "backends/cuda/tile/tensor_map.h"

namespace sluice::cuda {

template <class C>
struct TurnedEnd {
  struct Maps {
    CUtensorMap halves;
    tile::Divisor eights;  // of half a head
  };
  static constexpr bool kEights = false, kNorms = false;
  struct Out : TurnedOut<C> {
    tile::Divisor eights;
  };

  static __device__ __forceinline__ void prefetch(const Maps& w) { tile::prefetch_map(w.halves); }
  static __device__ __forceinline__ void fetch(bool, uint64_t policy, uint32_t to, const Maps& w, int k,
                                               int feature, uint32_t full) {
    const int unit = feature / stream::kSlab, head = unit / w.eights;
    tile::copy_box_by(policy, to, w.halves, k, unit - head * w.eights, head, full);
  }

  struct Token : TurnedOut<C>::Token {
    __device__ __forceinline__ explicit Token(const Out& out)
        : TurnedOut<C>::Token(out, stream::token_of_thread()) {}
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
  };

  class Unit {
   public:
    __device__ __forceinline__ Unit(const Out& out, const Token& token, int first, int) {
      const Place at(out, first);
      const bool turns = out.turns(token, at.head);
      bias_ = tile::load_weight(out.bias + out.feature(at.head, at.of_head(out)), out.bias != nullptr);
      const int64_t angle = out.angle(token, at.head, at.pair);
      cos_ = __uint_as_float(tile::load_weight(out.table + angle, turns));
      sin_ = __uint_as_float(tile::load_weight(out.table + angle + 1, turns));
    }
    __device__ __forceinline__ void store(const Out& out, const Token& token, int first, float sum) const {
      const Place at(out, first);
      sum += tile::weight_value<stream::B16>(bias_);
      float value[] = {__bfloat162float(__float2bfloat16_rn(sum))};
      const float other = __shfl_xor_sync(0xffffffffu, value[0], stream::kEight);
      if (out.turns(token, at.head)) value[0] = Out::turned(value[0], other, at.second, cos_, sin_);
      out.store(stream::token_of_thread(), token, at.head, at.of_head(out), value);
    }

   private:
    uint32_t bias_;
    float cos_, sin_;
  };
};

template <template <class> class End, class C, class Prepare>
Status launch_turned_to(std::string_view name, const QkvRopeKvWrite::Problem& p, const KernelLaunch& of,
                        const QkvRopeKvWrite::Args& a, Prepare prepare, Stream to) {
  const int64_t head_dim = p.rope.rope.head_dim;
  typename End<C>::Maps w{.halves = {},
                          .eights = tile::Divisor(static_cast<int>(head_dim / 2) / stream::kEight)};
  SLUICE_TRY(tile::map_halves(w.halves, a.w, head_dim, stream::kEight));
  typename End<C>::Out out{};
  static_cast<TurnedOut<C>&>(out) = turned_out<C>(p, a);
  out.eights = w.eights;
  prepare(out);
  return stream::launch_stream<End<C>>(name, QkvRopeKvWrite::project(p), of, a.x, w, out, to);
}

// Calls prepare(End::Out&) for what End has beyond TurnedEnd. x has 16-byte aligned rows.
template <template <class> class End, class Prepare>
Status launch_turned(std::string_view name, const QkvRopeKvWrite::Problem& p, const KernelLaunch& of,
                     const QkvRopeKvWrite::Args& a, Prepare prepare, Stream to) {
  return p.rope.cache == CacheType::kE4M3 ? launch_turned_to<End, E4M3>(name, p, of, a, prepare, to)
                                          : launch_turned_to<End, stream::B16>(name, p, of, a, prepare, to);
}

}  // namespace sluice::cuda
