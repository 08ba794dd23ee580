// Attention of many queries: FlashAttention with wgmma over pages.
//
// A CTA owns 128 queries of one sequence and one kv head (16 rows of 8 heads share their keys), 64 for each of two consumer
// warpgroups. The producer's first warp copies 128 keys (64 of wide heads) and their values at a time by TMA, a box for each page or part of it; its
// threads together find the next tile of queries while consumers still compute. Tiles of keys begin at multiples of their size.
//
// Scores and weights stay in registers, and so do the queries. Where every query of a warpgroup sees all keys of a tile, its
// first product runs beside the second one of the tile before, whose weights are kept for that. Elsewhere (the diagonal, the edge
// of a window, absent pages) the products run one after the other, and values are checked: zero times NaN is NaN, so a tile with
// NaN or infinities among what some query sees is added one by one.
#pragma once
#include <cuda.h>

#include "backends/cuda/attention/rows.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/registers.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/warp.cuh"
#include "backends/cuda/tile/wgmma_columns.cuh"

namespace sluice::cuda::attention {

template <int kDim>
struct PrefillShape {
  static constexpr int kConsumers = 2, kQueries = 64 * kConsumers, kKeys = kDim == 64 ? 128 : 64;
  static constexpr int kThreads = 128 * (1 + kConsumers), kWarps = 4 * kConsumers;  // of consumers
  static constexpr int kHalves = kDim / 64, kHalfBytes = kKeys * tile::kSwizzledRowBytes;
  static constexpr int kTileBytes = kHalves * kHalfBytes;  // keys, or values
  static constexpr int kStages = 4;
  static constexpr int kSharedBytes = 2 * kStages * kTileBytes + 1024;  // aligned by hand
};

struct PrefillCall {
  Step step;
  Tiling tiling;
  int tiles, box_keys;  // tiles of queries at most, of all kv heads; positions of a TMA box
};

// A tile of queries, as the producer hands it to the consumers.
struct PrefillWork {
  Queries queries;
  int kv_head, stop;  // stop: there are no more
};

template <class Shape>
struct PrefillShared {
  uint64_t keys_full[Shape::kStages], keys_free[Shape::kStages];
  uint64_t values_full[Shape::kStages], values_free[Shape::kStages];
  uint64_t work_full[2], work_free[2];
  PrefillWork work[2];
  uint32_t
      absent[Shape::kStages];  // a bit for each 16 keys that some query should see and whose page is absent
  TileSearch search;
};

template <int kDim>
class PrefillProducer {
 public:
  using Shape = PrefillShape<kDim>;
  __device__ __forceinline__ PrefillProducer(const PrefillCall& call, PrefillShared<Shape>& shared,
                                             uint32_t ring)
      : call_(call), shared_(shared), ring_(ring) {}

  // All threads of the producer's warpgroup.
  __device__ __forceinline__ void run(const CUtensorMap& k_map, const CUtensorMap& v_map) {
    const Step& p = call_.step;
    const int warp = tile::uniform(static_cast<int>(threadIdx.x) / 32);
    tile::RingPlace place, slot;
    for (int at = blockIdx.x;; at += static_cast<int>(gridDim.x)) {
      const int kv_head = at % p.kv_heads;
      const bool found = at < call_.tiles && find_tile<128>(p, call_.tiling, at / p.kv_heads, shared_.search);
      Queries of = shared_.search.found;
      // The last tile of a sequence sees most: it goes first.
      of.first = (of.count - 1) / Shape::kQueries * Shape::kQueries - of.first;
      tile::sync_threads<128>(1);
      if (warp == 0) {
        tile::barrier_wait_by_warp(&shared_.work_free[slot.stage], slot.parity ^ 1);
        if (threadIdx.x == 0) {
          shared_.work[slot.stage] = {of, kv_head, found ? 0 : 1};
          tile::barrier_arrive(&shared_.work_full[slot.stage]);
        }
        __syncwarp();
        slot.step(2);
        if (found) load(k_map, v_map, of, kv_head, place);
      }
      if (!found) return;
    }
  }

 private:
  // All keys that some query of the tile sees.
  __device__ __forceinline__ void load(const CUtensorMap& k_map, const CUtensorMap& v_map, const Queries& of,
                                       int kv_head, tile::RingPlace& place) {
    const Step& p = call_.step;
    // A lane for each 16 positions of the tile, which lie in one page; a box is some of them.
    const int lane = static_cast<int>(threadIdx.x) % 32, box = call_.box_keys;
    const SeenBy seen(p, of, of.first, min(of.first + Shape::kQueries, of.count) - 1);
    const int first = seen.some.first / Shape::kKeys, end = (seen.some.end + Shape::kKeys - 1) / Shape::kKeys;
    const int64_t table = static_cast<int64_t>(of.sequence) * p.pages_per_seq;
    const auto wanted = [&](int t) {
      const int j = t * Shape::kKeys + lane * 16 / box * box;
      return t < end && lane < Shape::kKeys / 16 && j < seen.some.end && j + box > seen.some.first;
    };
    const auto page_of = [&](int t) {
      return wanted(t) ? p.page_table[table + (t * Shape::kKeys + lane * 16) / p.page_size] : -1;
    };
    int page = page_of(first);
    for (int t = first; t < end; ++t) {
      const int next = page_of(t + 1);
      const bool there = page >= 0 && page < p.pages;
      const uint32_t absent = __ballot_sync(0xffffffffu, wanted(t) && !there);
      // Rows beyond the cache arrive as zeros.
      const int row =
          there ? (page * p.kv_heads + kv_head) * p.page_size + (t * Shape::kKeys + lane * 16) % p.page_size
                : p.pages * p.kv_heads * p.page_size;
      const uint32_t s = place.stage, keys = ring_ + s * 2 * Shape::kTileBytes;
      tile::barrier_wait_by_warp(&shared_.keys_free[s], place.parity ^ 1);
      if (lane == 0) shared_.absent[s] = absent;
      __syncwarp();
      copy(k_map, keys, row, tile::shared_address(&shared_.keys_full[s]));
      tile::barrier_wait_by_warp(&shared_.values_free[s], place.parity ^ 1);
      copy(v_map, keys + Shape::kTileBytes, row, tile::shared_address(&shared_.values_full[s]));
      place.step(Shape::kStages);
      page = next;
    }
  }
  __device__ __forceinline__ void copy(const CUtensorMap& map, uint32_t to, int row_of_lane,
                                       uint32_t barrier) {
    tile::barrier_expect_by_warp(barrier, Shape::kTileBytes);
    for (int j = 0; j < Shape::kKeys; j += call_.box_keys) {
      const int row = __shfl_sync(0xffffffffu, row_of_lane, j / 16);
#pragma unroll
      for (int half = 0; half < Shape::kHalves; ++half)
        tile::copy_box(to + half * Shape::kHalfBytes + j * tile::kSwizzledRowBytes, map, 64 * half, row,
                       barrier);
    }
  }

  const PrefillCall& call_;
  PrefillShared<Shape>& shared_;
  const uint32_t ring_;
};

// One consumer warpgroup: its 64 queries of a tile.
template <int kDim>
class PrefillConsumer {
 public:
  using Shape = PrefillShape<kDim>;
  __device__ __forceinline__ PrefillConsumer(const PrefillCall& call, PrefillShared<Shape>& shared,
                                             uint32_t ring)
      : p_(call.step),
        shared_(shared),
        ring_(ring),
        group_(tile::uniform(static_cast<int>(threadIdx.x) / 128) - 1),
        lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run() {
    tile::RingPlace place, slot;
    for (;; slot.step(2)) {
      tile::barrier_wait(&shared_.work_full[slot.stage], slot.parity);
      const PrefillWork work = shared_.work[slot.stage];
      __syncwarp();
      if (lane_ == 0) tile::barrier_arrive(&shared_.work_free[slot.stage]);
      if (work.stop) return;
      take(work, place);
    }
  }

 private:
  static constexpr int kScores = Shape::kKeys / 2, kValues = kDim / 2;  // registers of a thread

  __device__ __forceinline__ void take(const PrefillWork& work, tile::RingPlace& place) {
    const Queries& of = work.queries;
    const int first = of.first + 64 * group_, last = min(first + 64, of.count) - 1;
    const SeenBy of_cta(p_, of, of.first, min(of.first + Shape::kQueries, of.count) - 1);
    const bool idle = first > last;
    const SeenBy seen(p_, of, idle ? of.first : first, idle ? of.first : last);
    const int row = first + 16 * (static_cast<int>(threadIdx.x) / 32 % 4) + lane_ / 4;
    load_queries(of, work.kv_head, row, last);
#pragma unroll
    for (int r = 0; r < 2; ++r) largest_[r] = kNothing, sum_[r] = 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) value_[i] = 0;
    int waiting = -1;  // the stage whose values are still to be added, with the weights in weight_
    uint32_t waiting_parity = 0;
    const int end = (of_cta.some.end + Shape::kKeys - 1) / Shape::kKeys;
    for (int t = of_cta.some.first / Shape::kKeys; t < end; ++t) {
      const int at = t * Shape::kKeys, s = static_cast<int>(place.stage);
      tile::barrier_wait_by_warp(&shared_.keys_full[s], place.parity);
      const bool whole =
          !idle && at >= seen.all.first && at + Shape::kKeys <= seen.all.end && shared_.absent[s] == 0;
      if (whole) {
        if (waiting < 0) {
          score(s);
          tile::wait_groups<0>();
          tile::hold(score_);
          release(shared_.keys_free[s]);
          float factor[2];
          weigh(factor);
          rescale_values(factor);
        } else {
          tile::barrier_wait_by_warp(&shared_.values_full[waiting], waiting_parity);
          score(s);
          add_values(waiting);
          tile::wait_groups<1>();
          tile::hold(score_);
          // By a predicate: ptxas accepts no branches between a product and its wait.
          tile::arrive_by_lane(tile::shared_address(&shared_.keys_free[s]), lane_ == 0);
          float factor[2];
          weigh(factor);
          tile::wait_groups<0>();
          tile::hold(value_);
          release(shared_.values_free[waiting]);
          rescale_values(factor);
        }
        keep_weights();
        waiting = s, waiting_parity = place.parity;
      } else {
        if (waiting >= 0) drain(waiting, waiting_parity);
        waiting = -1;
        const bool nothing = idle || at >= seen.some.end || at + Shape::kKeys <= seen.some.first;
        take_part(s, place.parity, at, of_cta.some, nothing);
      }
      place.step(Shape::kStages);
    }
    if (waiting >= 0) drain(waiting, waiting_parity);
    write(of, work.kv_head, row, last);
  }

  // A tile that some queries do not see as a whole.
  __device__ __forceinline__ void take_part(int s, uint32_t parity, int at, const Span& of_cta,
                                            bool nothing) {
    const uint32_t absent = shared_.absent[s];
    if (!nothing) {
      score(s);
      tile::wait_groups<0>();
      tile::hold(score_);
      hide(at, absent);
    }
    release(shared_.keys_free[s]);
    if (!nothing) {
      float factor[2];
      weigh(factor);
      rescale_values(factor);
    }
    tile::barrier_wait_by_warp(&shared_.values_full[s], parity);
    if (!nothing) {
      if (any_not_finite(s, at, of_cta)) {
        add_one_by_one(s, at);
      } else {
        keep_weights();
        tile::fence_operands();
        add_values(s);
        tile::wait_groups<0>();
        tile::hold(value_);
      }
    }
    release(shared_.values_free[s]);
  }

  __device__ __forceinline__ void drain(int s, uint32_t parity) {
    tile::barrier_wait_by_warp(&shared_.values_full[s], parity);
    tile::fence_operands();
    add_values(s);
    tile::wait_groups<0>();
    tile::hold(value_);
    release(shared_.values_free[s]);
  }

  __device__ __forceinline__ uint32_t keys_of(int s) const { return ring_ + s * 2 * Shape::kTileBytes; }
  __device__ __forceinline__ uint32_t values_of(int s) const { return keys_of(s) + Shape::kTileBytes; }

  // Starts the first product.
  __device__ __forceinline__ void score(int s) {
    tile::fence_operands();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k)
      tile::multiply_registers<Shape::kKeys>(
          score_, query_[k],
          tile::describe_tile(keys_of(s) + k / 4 * Shape::kHalfBytes) + k % 4 * tile::kNext16, k > 0);
    tile::commit_group();
  }
  // Starts the second one.
  __device__ __forceinline__ void add_values(int s) {
    const uint64_t values = tile::describe_columns(values_of(s), Shape::kHalfBytes);
#pragma unroll
    for (int k = 0; k < Shape::kKeys / 16; ++k)
      tile::multiply_columns<kDim>(value_, weight_[k], values + k * tile::kNextRows16);
    tile::commit_group();
  }

  // What is read of a stage has been read by this warp.
  __device__ __forceinline__ void release(uint64_t& barrier) {
    __syncwarp();
    if (lane_ == 0) tile::barrier_arrive(&barrier);
  }

  // As the first operand (wgmma_registers.cuh), zeros beyond the last query; and what the thread's two rows see.
  __device__ __forceinline__ void load_queries(const Queries& of, int kv_head, int row, int last) {
    const auto* q = static_cast<const __nv_bfloat16*>(p_.q);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = row + 8 * r;
      const bool there = query <= last;
      span_[r] = there ? of.span_of(p_, query) : Span{0, 0};
      const __nv_bfloat16* from = q + (there ? of.place(p_, query, kv_head, kDim, p_.q_stride) : 0);
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const __nv_bfloat16* at = from + 16 * k + 8 * half + 2 * (lane_ % 4);
          query_[k][2 * half + r] = there ? two_of(p_, at) : 0;
        }
      }
    }
  }

  // `absent`: a bit for each 16 keys.
  __device__ __forceinline__ void hide(int at, uint32_t absent) {
#pragma unroll
    for (int n = 0; n < Shape::kKeys / 8; ++n) {
      const bool gone = (absent >> (n / 2) & 1) != 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int j = at + 8 * n + 2 * (lane_ % 4) + e % 2;
        if (gone || !span_[e / 2].sees(j)) score_[4 * n + e] = kNothing;
      }
    }
  }

  // Scores become weights. factor: what sums so far must be multiplied by; sum_ is already.
  __device__ __forceinline__ void weigh(float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = kNothing;
#pragma unroll
      for (int n = 0; n < Shape::kKeys / 8; ++n)
        most = fmaxf(most, fmaxf(score_[4 * n + 2 * r], score_[4 * n + 2 * r + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      most = fmaxf(most * p_.scale, largest_[r]);
      const float base = base_of(most);
      factor[r] = rescale(largest_[r], base);
      largest_[r] = most;
      float sum[2] = {};
#pragma unroll
      for (int n = 0; n < Shape::kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& s = score_[4 * n + 2 * r + e];
          s = exp2_of(fmaf(s, p_.scale, -base));
          sum[e] += s;
        }
      }
      sum_[r] = sum_[r] * factor[r] + (sum[0] + sum[1]);
    }
  }
  __device__ __forceinline__ void rescale_values(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) value_[i] *= factor[i % 4 / 2];
  }
  // Weights as the first operand of the second product.
  __device__ __forceinline__ void keep_weights() {
#pragma unroll
    for (int k = 0; k < Shape::kKeys / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        weight_[k][i] =
            pack(score_[8 * k + 4 * (i / 2) + 2 * (i % 2)], score_[8 * k + 4 * (i / 2) + 2 * (i % 2) + 1]);
    }
  }

  // Whether the values of a stage have a NaN or an infinity; equal in all threads of the warpgroup. Keys that no query of the CTA
  // sees may be anything, even what nobody has written: their values become zeros, so that they decide nothing. Both warpgroups
  // write the same zeros.
  __device__ __forceinline__ bool any_not_finite(int s, int at, const Span& of_cta) const {
    const uint32_t values = values_of(s);
    bool found = false;
    for (int i = static_cast<int>(threadIdx.x) % 128; i < Shape::kTileBytes / 16; i += 128) {
      const bool wanted = of_cta.sees(at + i % (Shape::kHalfBytes / 16) / (tile::kSwizzledRowBytes / 16));
      if (wanted) {
        const uint4 v = tile::load_shared(values + 16 * i);
        found |= not_finite(v.x) || not_finite(v.y) || not_finite(v.z) || not_finite(v.w);
      } else {
        tile::store_shared(values + 16 * i, make_uint4(0, 0, 0, 0));
      }
    }
    tile::fence_for_async();
    int any;
    asm volatile(
        "{\n"
        ".reg .pred mine, any;\n"
        "setp.ne.u32 mine, %1, 0;\n"
        "bar.red.or.pred any, %2, 128, mine;\n"
        "selp.b32 %0, 1, 0, any;\n"
        "}"
        : "=r"(any)
        : "r"(static_cast<uint32_t>(found)), "r"(2 + group_)
        : "memory");
    return any != 0;
  }

  // The second product without tensor cores: a weight meets only values that its query sees.
  __device__ __forceinline__ void add_one_by_one(int s, int at) {
    const uint32_t values = values_of(s);
#pragma unroll
    for (int n = 0; n < Shape::kKeys / 8; ++n) {
#pragma unroll 1
      for (int i = 0; i < 8; ++i) {
        const int key = 8 * n + i, from = lane_ / 4 * 4 + i / 2;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float w =
              __shfl_sync(0xffffffffu, i % 2 ? score_[4 * n + 2 * r + 1] : score_[4 * n + 2 * r], from);
          // A key of an absent page weighs nothing, and its values are zeros.
          const bool sees = span_[r].sees(at + key);
#pragma unroll
          for (int d = 0; d < kDim / 8; ++d) {
            const uint32_t pair =
                tile::load_shared_word(values + d / 8 * Shape::kHalfBytes +
                                       tile::swizzled(static_cast<uint32_t>(key),
                                                      static_cast<uint32_t>(d % 8 * 16 + 4 * (lane_ % 4))));
            if (!sees) continue;
            value_[4 * d + 2 * r] += w * low_of(pair), value_[4 * d + 2 * r + 1] += w * high_of(pair);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void write(const Queries& of, int kv_head, int row, int last) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const int query = row + 8 * r;
      if (query > last) continue;
      const float share = share_of(p_, kv_head * p_.group + query % p_.group, largest_[r], sum);
      auto* y = static_cast<__nv_bfloat16*>(p_.y) + of.place(p_, query, kv_head, kDim, p_.y_stride);
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) {
        const uint32_t pair =
            pack(scaled(value_[4 * d + 2 * r], share), scaled(value_[4 * d + 2 * r + 1], share));
        __nv_bfloat16* to = y + 8 * d + 2 * (lane_ % 4);
        if (p_.y_wide) {
          *reinterpret_cast<uint32_t*>(to) = pair;
        } else {
          to[0] = __ushort_as_bfloat16(static_cast<unsigned short>(pair & 0xffffu));
          to[1] = __ushort_as_bfloat16(static_cast<unsigned short>(pair >> 16));
        }
      }
    }
  }

  const Step& p_;
  PrefillShared<Shape>& shared_;
  const uint32_t ring_;
  const int group_, lane_;
  uint32_t query_[kDim / 16][4], weight_[Shape::kKeys / 16][4];
  float score_[kScores], value_[kValues], largest_[2], sum_[2];
  Span span_[2];
};

// A CTA for each multiprocessor, or fewer: each walks tiles of queries.
template <int kDim>
__global__ void __launch_bounds__(PrefillShape<kDim>::kThreads, 1)
    attention_prefill(const __grid_constant__ PrefillCall call, const __grid_constant__ CUtensorMap k_map,
                      const __grid_constant__ CUtensorMap v_map) {
  using Shape = PrefillShape<kDim>;
  extern __shared__ uint8_t dynamic[];
  __shared__ PrefillShared<Shape> shared;
  const uint32_t raw = tile::shared_address(dynamic), ring = raw + (-raw & 1023u);
  tile::release_next();
  if (threadIdx.x == 0) {
    for (int s = 0; s < Shape::kStages; ++s) {
      tile::barrier_init(&shared.keys_full[s], 1), tile::barrier_init(&shared.keys_free[s], Shape::kWarps);
      tile::barrier_init(&shared.values_full[s], 1),
          tile::barrier_init(&shared.values_free[s], Shape::kWarps);
    }
    for (int s = 0; s < 2; ++s)
      tile::barrier_init(&shared.work_full[s], 1), tile::barrier_init(&shared.work_free[s], Shape::kWarps);
    tile::barrier_visible();
    tile::prefetch_map(k_map), tile::prefetch_map(v_map);
  }
  __syncthreads();
  tile::wait_for_previous();
  constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  if (threadIdx.x < 128) {
    tile::keep_registers<kProducerRegisters>();
    PrefillProducer<kDim>(call, shared, ring).run(k_map, v_map);
  } else {
    tile::take_registers<kConsumerRegisters>();
    PrefillConsumer<kDim>(call, shared, ring).run();
  }
}

}  // namespace sluice::cuda::attention
