// Queries, keys and values of up to 128 rows, by the kernel in which each SM computes a share of the features (linear_shares.cuh). A group
// of eight features is four features of a head and their partners, half a head further, so two lanes of a warp have the two features of a
// pair. Sums are rounded to bf16 as in the separate projection, so the result is bitwise equal to the unfused operations' result.
//
// Wins    9 to 128 rows, because it saves the launch between the projection and attention: decode steps of
//         gpt-oss-20b on an H100 take 4143 us instead of 4177 at 16 sequences, 6613 instead of 6630 at 128
//         (docs/lab/cuda-step-launches.md).
// Loses   up to 8 rows to stream_sm90, as the projection alone does. It refuses more than 128 rows.
// Limits  bf16, heads that are rotated as a whole, with pairs half a head apart.
// Bytes   w once; x once per SM, from L2.
// Source  original; the contract is ops/fused/qkv_rope_kv_write.h.
#include "backends/cuda/linear/linear_shares.h"
#include "backends/cuda/norm_rope/qkv_rope_kv_write.h"

namespace sluice::cuda {
namespace {

constexpr int kQuad = 4;     // pairs in a group of eight features
constexpr int kHeadOf = 32;  // features in four groups of eight; divides head_dim

Refusal supports(const QkvRopeKvWrite::Problem& p, const DeviceInfo& d) {
  Refusal r;
  shares::need_shares(r, QkvRopeKvWrite::project(p), d);
  need_rotated_heads(r, p, kHeadOf, "units of sixteen pairs");
  return r;
}

std::vector<Config> configs(const QkvRopeKvWrite::Problem& p, const DeviceInfo& d) {
  return shares::configs_of(QkvRopeKvWrite::project(p), d, kRotateUs);
}

std::string launch_text(const QkvRopeKvWrite::Problem& p, const KernelLaunch& launch) {
  return shares::text_of(QkvRopeKvWrite::project(p), launch);
}

struct Launcher {
  static Status enqueue(const QkvRopeKvWrite::Problem&, std::span<const KernelLaunch>,
                        const QkvRopeKvWrite::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<QkvRopeKvWrite> qkv_rope_kv_write_shares_sm90 = {
    .name = "cuda.qkv_rope_kv_write.shares_sm90",
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
#include "backends/cuda/linear/linear_shares.cuh"
#include "backends/cuda/norm_rope/qkv_rope_kv_write.cuh"
#include "backends/cuda/tile/tensor_map.h"

namespace sluice::cuda {
namespace {

// The groups of eight features of a CTA. First come quadruples of groups: 16 adjacent features of half a head and their 16 partners. Then
// come single groups: four features and their partners. So the kernel writes whole sectors of qkv and of the caches where possible.
template <int kEights>
struct Parts {
  static constexpr int kFours = kEights / 4, kOnes = kEights % 4;

  static __device__ __forceinline__ int four(int cta, int i) { return cta * kFours + i; }
  // Index of a single group; single groups come after the quadruples of all CTAs.
  static __device__ __forceinline__ int one(int cta, int ctas, int i) {
    return 4 * kFours * ctas + cta * kOnes + i;
  }
};

template <class C>
struct TurnedEnd {
  struct Maps {
    CUtensorMap fours, ones;
    tile::Divisor quads;  // quads (four pairs) in half a head
  };
  struct Out : RotatedOut<C> {
    tile::Divisor quads;
  };

  static __device__ __forceinline__ void prefetch(const Maps& w) {
    tile::prefetch_map(w.fours), tile::prefetch_map(w.ones);
  }
  template <int kFeatures>
  static __device__ __forceinline__ void fetch(uint64_t policy, uint32_t to, const Maps& w, int k, int cta,
                                               uint32_t full) {
    using Of = Parts<kFeatures / 8>;
    constexpr int kEightBytes = 1024;
#pragma unroll
    for (int i = 0; i < Of::kFours; ++i) {
      const int quad = 4 * Of::four(cta, i), head = quad / w.quads;
      tile::copy_box_of_pairs(policy, to + 4 * i * kEightBytes, w.fours, k,
                              head * w.quads * kQuad + (quad - head * w.quads) * kQuad / 2, full);
    }
#pragma unroll
    for (int i = 0; i < Of::kOnes; ++i) {
      const int quad = Of::one(cta, static_cast<int>(gridDim.x), i), head = quad / w.quads;
      tile::copy_box_by(policy, to + (4 * Of::kFours + i) * kEightBytes, w.ones, k, quad - head * w.quads,
                        head, full);
    }
  }

  // N adjacent pairs of one head. N of this thread's columns are features of these pairs; lane c ^ 2 has their partners.
  template <int N>
  struct Turn {
    int head, pair;
    uint32_t bias[N];
    uint4 angles[2][N / 2];

    __device__ __forceinline__ Turn() = default;
    __device__ __forceinline__ Turn(const Out& out, const typename RotatedOut<C>::Token (&tokens)[2],
                                    int quad, int pairs_on) {
      head = quad / out.quads, pair = (quad - head * out.quads) * kQuad + pairs_on;
#pragma unroll
      for (int i = 0; i < N; ++i)
        bias[i] = tile::load_weight(out.bias + out.feature(head, of_head(out)) + i,
                                    out.bias != nullptr && there(out));
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < N / 2; ++i)
          angles[half][i] = load_raw_four(out.table, out.angle(tokens[half], head, pair + 2 * i), true,
                                          out.rotates(tokens[half], head));
    }
    __device__ __forceinline__ int of_head(const Out& out) const { return pair + (second() ? out.half : 0); }
    __device__ __forceinline__ bool there(const Out& out) const {
      return head < out.heads + 2 * out.kv_heads;
    }
    // sums: the sums of one row.
    __device__ __forceinline__ void store(const Out& out, const typename RotatedOut<C>::Token& token, int row,
                                          int half, const float (&sums)[N]) const {
      float value[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const uint4& a = angles[half][i / 2];
        const float cos = __uint_as_float(i % 2 ? a.z : a.x), sin = __uint_as_float(i % 2 ? a.w : a.y);
        value[i] =
            __bfloat162float(__float2bfloat16_rn(sums[i] + tile::weight_value<__nv_bfloat16>(bias[i])));
        const float other = __shfl_xor_sync(0xffffffffu, value[i], 2);
        if (out.rotates(token, head)) value[i] = rotated(value[i], other, second(), cos, sin);
      }
      if (there(out)) out.store(row, token, head, of_head(out), value);
    }
  };

  template <int kEights>
  class Sums {
    using Of = Parts<kEights>;

   public:
    __device__ __forceinline__ Sums(const Out& out, int row)
        : row_(row), tokens_{{out, row}, {out, row + 8}} {
      const int cta = static_cast<int>(blockIdx.x), of_half = shares::column_of_thread() % kQuad;
#pragma unroll
      for (int i = 0; i < Of::kFours; ++i) fours_[i] = {out, tokens_, 4 * Of::four(cta, i), 4 * of_half};
#pragma unroll
      for (int i = 0; i < Of::kOnes; ++i)
        ones_[i] = {out, tokens_, Of::one(cta, static_cast<int>(gridDim.x), i), of_half};
      if (out.settled) tile::wait_for_previous();
    }
    __device__ __forceinline__ void store(const Out& out, const float (&d)[4 * kEights]) const {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_ + 8 * half;
#pragma unroll
        for (int i = 0; i < Of::kFours; ++i) {
          float sums[8];
#pragma unroll
          for (int j = 0; j < 8; ++j) sums[j] = d[4 * (4 * i + j / 2) + 2 * half + j % 2];
          fours_[i].store(out, tokens_[half], row, half, sums);
        }
#pragma unroll
        for (int i = 0; i < Of::kOnes; ++i) {
          const int at = 4 * (4 * Of::kFours + i) + 2 * half;
          ones_[i].store(out, tokens_[half], row, half, {d[at], d[at + 1]});
        }
      }
    }

   private:
    int row_;
    typename RotatedOut<C>::Token tokens_[2];
    Turn<8> fours_[std::max(Of::kFours, 1)];
    Turn<2> ones_[std::max(Of::kOnes, 1)];
  };

 private:
  // True if this thread's columns are in the second half of a head.
  static __device__ __forceinline__ bool second() { return shares::column_of_thread() >= kQuad; }
};

template <class C>
Status launch_rotated(const QkvRopeKvWrite::Problem& p, const KernelLaunch& of, const QkvRopeKvWrite::Args& a,
                      Stream to) {
  using End = TurnedEnd<C>;
  const int64_t head_dim = p.rope.rope.head_dim;
  typename End::Maps w{
      .fours = {}, .ones = {}, .quads = tile::Divisor(static_cast<int>(head_dim / 2) / kQuad)};
  SLUICE_TRY(tile::map_pairs(w.fours, a.w, head_dim));
  SLUICE_TRY(tile::map_halves(w.ones, a.w, head_dim, kQuad));
  const typename End::Out out{rotated_out<C>(p, a), w.quads};
  return shares::launch_shares<End>(qkv_rope_kv_write_shares_sm90.name, QkvRopeKvWrite::project(p), of, a.x,
                                    w, out, to);
}

Status Launcher::enqueue(const QkvRopeKvWrite::Problem& p, std::span<const KernelLaunch> launches,
                         const QkvRopeKvWrite::Args& a, Workspace, Stream stream) {
  if (p.rope.rope.tokens == 0) return {};
  return p.rope.cache == CacheType::kE4M3 ? launch_rotated<E4M3>(p, launches[0], a, stream)
                                          : launch_rotated<__nv_bfloat16>(p, launches[0], a, stream);
}

}  // namespace
}  // namespace sluice::cuda
#endif
