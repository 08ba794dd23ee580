// A consumer warpgroup of prefill.cuh, with 64 queries of a tile.
#pragma once
#include <cstddef>

#include "backends/cuda/attention/prefill_shape.cuh"
#include "backends/cuda/tile/warp.cuh"
#include "backends/cuda/tile/wgmma_columns.cuh"

namespace sluice::cuda::attention {

template <int kDim, class C>
class PrefillConsumer {
 public:
  using Shape = PrefillShape<kDim, C>;
  __device__ __forceinline__ PrefillConsumer(const PrefillCall& call, PrefillShared<Shape>& shared,
                                             uint32_t ring)
      : p_(call.step),
        shared_(shared),
        ring_(ring),
        barriers_(tile::shared_address(&shared)),
        group_(tile::uniform(static_cast<int>(threadIdx.x) / 128) - 1) {
    // Keeps these values in registers; otherwise the compiler recomputes them at each use.
    asm volatile("" : "+r"(ring_), "+r"(barriers_), "+r"(group_));
  }

  __device__ __forceinline__ void run() {
    uint32_t iteration = 0;  // counts tiles of keys, over all tiles of queries
    for (tile::RingPlace slot;; slot.step(Shape::kSlots)) {
      shared_.queries.ring().wait_by_warp(slot);
      if (shared_.work[slot.stage].stop) return;
      take(slot.stage, iteration);
    }
  }

 private:
  static constexpr bool kSumsByProduct = Shape::kSumsByProduct;
  static constexpr int kScores = Shape::kKeys / 2;  // registers per thread
  static constexpr int kSum = kDim / 2, kValues = kSum + (kSumsByProduct ? 4 : 0);
  // Weights are 2^(score - base). A new base is kAbove higher than the largest score so far, so that later scores may be larger
  // than that score. A new base is needed once a weight is 2 or more; one bit of the bitwise or of all weights shows this.
  // kBeyond: if the second product does not sum the weights, a new base is needed once a thread's sum of weights reaches this.
  static constexpr float kAbove = kSumsByProduct ? 16 : 0, kBeyond = 65536;

  // Whether some or all queries attend to a tile of keys.
  enum class Seen : uint8_t { kSome, kAll };

  // Recomputed where it is used instead of kept across loops, because registers are scarce.
  static __device__ __forceinline__ int thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread % 128;
  }

  // This warpgroup's queries in a tile of queries; first > last: none.
  struct Mine {
    int first, last, row;  // row: the first of this thread's two rows, which are eight apart
    __device__ __forceinline__ Mine(const PrefillWork& work, int group, int thread)
        : first(work.queries.first + 64 * group),
          last(min(first + 64, work.end) - 1),
          row(first + thread / 32 * 16 + thread % 32 / 4) {}
  };

  __device__ __forceinline__ void take(uint32_t slot, uint32_t& iteration) {
    slot = static_cast<uint32_t>(tile::uniform(static_cast<int>(slot)));
    // tiles: number of the CTA's tiles of keys. some, all: the tiles to which some, and every, query of the warpgroup attends.
    int tiles;
    Span some, all;
    {
      const PrefillWork work = shared_.work[slot];
      const Mine mine(work, group_, thread());
      const SeenBy seen(p_, work.queries, min(mine.first, work.end - 1), max(mine.last, 0));
      const auto from_origin = [&](int key) { return (key - work.origin + Shape::kKeys - 1) / Shape::kKeys; };
      tiles = from_origin(work.keys.end);
      some = mine.first > mine.last || seen.some.first >= seen.some.end
                 ? Span{0, 0}
                 : Span{(seen.some.first - work.origin) / Shape::kKeys, from_origin(seen.some.end)};
      all = {from_origin(seen.all.first), (seen.all.end - work.origin) / Shape::kKeys};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int query = mine.row + 8 * r;
        const bool there = query <= mine.last;
        at_[r] = there ? work.queries.position_of(p_, query) : -1;
        // Rows without a query get a base at once.
        base_[r] = there ? kNothing : 0, sum_[r] = 0;
      }
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) value_[i] = 0;
    waits_ = false, fresh_ = true;
    for (int t = 0; t < tiles; ++t, ++iteration) {
      if (waits_ && !fresh_ && t >= all.first) take_whole(slot, iteration, t, all.end);
      if (t >= tiles) break;
      iteration = static_cast<uint32_t>(tile::uniform(static_cast<int>(iteration)));
      keys().wait_by_warp(place_of(iteration));
      if (some.sees(t)) {
        take_part(slot, iteration, t, all.sees(t));
      } else {
        pass(iteration);
      }
    }
    if (waits_) drain(iteration - 1);
    write(slot);
    tile::arrive_by_warp(shared_.queries.ring().empty_of(slot));
  }
  // Processes tiles, beginning with t, to which every query attends, until one needs another base. Then t is that tile, and no values are pending.
  __device__ __forceinline__ void take_whole(uint32_t slot, uint32_t& iteration, int& t, int end) {
    // Two tiles per iteration: the two sets of weights swap roles without being moved.
    while (t + 1 < end) {
      if (!take_next<0>(slot, iteration, t)) return;
      if (!take_next<1>(slot, iteration, t)) return;
    }
    if (t < end && take_next<0>(slot, iteration, t)) keep_weights();
  }
  // Processes one such tile. Its weights become the set that is not pending. Returns false if the tile needs another base.
  template <int kSet>
  __device__ __forceinline__ bool take_next(uint32_t slot, uint32_t& iteration, int& t) {
    iteration = static_cast<uint32_t>(tile::uniform(static_cast<int>(iteration)));
    keys().wait_by_warp(place_of(iteration));
    if (take_keys<Seen::kAll, kSet>(slot, iteration)) return false;
    tile::arrive_by_warp(keys().empty_of(stage_of(iteration)));
    waits_ = true, ++t, ++iteration;
    return true;
  }
  // Processes a tile to which some query may not attend completely, or whose weights need a new base.
  __device__ __forceinline__ void take_part(uint32_t slot, uint32_t iteration, int t, bool whole) {
    look(slot, t, iteration);
    bool rebases = fresh_ || !waits_;
    if (!rebases) {
      rebases = take_keys<Seen::kSome, 0>(slot, iteration);
    } else if (waits_) {
      drain(iteration - 1);
    }
    if (rebases) {
      rebase(slot, iteration);
    } else {
      keep_weights();
    }
    tile::arrive_by_warp(keys().empty_of(stage_of(iteration)));
    if (!whole) {
      values().wait_by_warp(place_of(iteration));
      if (any_not_finite(iteration) && any_not_finite_seen(slot, iteration, t)) {
        add_one_by_one(iteration);
        tile::arrive_by_warp(values().empty_of(stage_of(iteration)));
        return;
      }
    }
    waits_ = true;
  }
  // Releases a tile to which no query of the warpgroup attends.
  __device__ __forceinline__ void pass(uint32_t iteration) {
    if (waits_) drain(iteration - 1);
    tile::arrive_by_warp(keys().empty_of(stage_of(iteration)));
    values().wait_by_warp(place_of(iteration));
    tile::arrive_by_warp(values().empty_of(stage_of(iteration)));
  }

  // The stage of an iteration.
  static __device__ __forceinline__ uint32_t stage_of(uint32_t iteration) {
    return iteration % Shape::kStages;
  }
  static __device__ __forceinline__ tile::RingPlace place_of(uint32_t iteration) {
    return {stage_of(iteration), iteration / Shape::kStages % 2};
  }
  using Shared = PrefillShared<Shape>;
  __device__ __forceinline__ tile::Ring keys() const {
    return tile::RingBarriers<Shape::kStages>::at(barriers_ + static_cast<uint32_t>(offsetof(Shared, keys)));
  }
  __device__ __forceinline__ tile::Ring values() const {
    return tile::RingBarriers<Shape::kStages>::at(barriers_ +
                                                  static_cast<uint32_t>(offsetof(Shared, values)));
  }
  // Mask of absent keys. Only lane 0 reads it, because it also releases the stage, and
  // compute-sanitizer's racecheck does not track reads of other lanes. 0 in the other lanes.
  __device__ __forceinline__ uint32_t absent(uint32_t iteration) const {
    return thread() % 32 == 0
               ? tile::load_shared_word(barriers_ + static_cast<uint32_t>(offsetof(Shared, absent)) +
                                        stage_of(iteration) * sizeof(uint32_t))
               : 0;
  }

  // Converts the scores of a tile of keys to weights, while the pending values of the previous iteration are added, whose
  // weights are set kSet. Returns true if the new weights are unusable, because they need another base or a page is absent.
  template <Seen kSeen, int kSet>
  __device__ __forceinline__ bool take_keys(uint32_t slot, uint32_t iteration) {
    values().wait_by_warp(place_of(iteration - 1));
    score(slot, iteration);
    add_values<kSet>(iteration - 1);
    const uint32_t gone = kSeen == Seen::kAll ? absent(iteration) : 0;
    tile::wait_groups<1>();
    tile::hold(score_);
    // No branches from here to the wait, because ptxas accepts none between a wgmma and its wait.
    if constexpr (kSeen == Seen::kSome) hide();
    float sum[2];
    const bool beyond = weigh<1 - kSet>(sum);
    // The vote keeps the computation of weights before the wait. Otherwise ptxas moves this
    // wait up to the wait for the first product, and nothing overlaps with the second product.
    const bool lost = any_of_group(gone != 0 || beyond);
    tile::wait_groups<0>();
    tile::hold(value_);
    tile::arrive_by_warp(values().empty_of(stage_of(iteration - 1)));
    waits_ = false;
    if (!lost) sum_[0] += sum[0], sum_[1] += sum[1];
    return lost;
  }

  // Computes a new base from the largest score so far, converts scores to weights relative to it, and rescales the sums. No values are pending.
  __device__ __forceinline__ void rebase(uint32_t slot, uint32_t iteration) {
    score(slot, iteration);
    tile::wait_groups<0>();
    tile::hold(score_);
    hide();
    float factor[2], sum[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = kNothing;
#pragma unroll
      for (int n = 0; n < Shape::kKeys / 8; ++n)
        most = fmaxf(most, fmaxf(score_[4 * n + 2 * r], score_[4 * n + 2 * r + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      most = fmaxf(fmaf(most, p_.scale, kAbove), base_[r]);
      factor[r] = rescale(base_[r], base_of(most));
      base_[r] = most;
    }
    weigh<0>(sum);
#pragma unroll
    for (int r = 0; r < 2; ++r) sum_[r] = sum_[r] * factor[r] + sum[r];
#pragma unroll
    for (int i = 0; i < kValues; ++i) value_[i] *= factor[i % 4 / 2];
    fresh_ = any_of_group(base_[0] == kNothing || base_[1] == kNothing);
  }

  __device__ __forceinline__ void drain(uint32_t iteration) {
    values().wait_by_warp(place_of(iteration));
    tile::fence_operands();
    add_values<0>(iteration);
    tile::wait_groups<0>();
    tile::hold(value_);
    tile::arrive_by_warp(values().empty_of(stage_of(iteration)));
    waits_ = false;
  }

  __device__ __forceinline__ uint32_t keys_of(uint32_t iteration) const {
    return ring_ + stage_of(iteration) * 2 * Shape::kKeyBytes;
  }
  __device__ __forceinline__ uint32_t values_of(uint32_t iteration) const {
    return keys_of(iteration) + Shape::kKeyBytes;
  }

  // Starts the first product: scores.
  __device__ __forceinline__ void score(uint32_t slot, uint32_t iteration) {
    const uint32_t mine = ring_ + Shape::kRingBytes + slot * Shape::kQueryBytes +
                          static_cast<uint32_t>(group_ * 64 * tile::kSwizzledRowBytes);
    const uint64_t queries = tile::describe_tile(mine), keys = tile::describe_tile(keys_of(iteration));
    tile::fence_operands();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k)
      tile::multiply<Shape::kKeys>(
          score_, queries + k / 4 * Shape::kQueryHalf / tile::kDescribed + k % 4 * tile::kNext16,
          keys + k / 4 * Shape::kKeyHalf / tile::kDescribed + k % 4 * tile::kNext16, k > 0);
    tile::commit_group();
  }
  // Starts the second product: adds weighted values.
  template <int kSet>
  __device__ __forceinline__ void add_values(uint32_t iteration) {
    const uint32_t at = values_of(iteration);
    const uint64_t values =
        tile::describe_columns(at, kSumsByProduct ? ring_ + Shape::kOnesAt - at : Shape::kKeyHalf);
#pragma unroll
    for (int k = 0; k < Shape::kKeys / 16; ++k)
      tile::multiply_columns<2 * kValues>(value_, weight_[kSet][k], values + k * tile::kNextRows16);
    tile::commit_group();
  }

  // True if `mine` is true in any thread of the warpgroup.
  __device__ __forceinline__ bool any_of_group(bool mine) const {
    uint32_t any;
    asm volatile(
        "{\n"
        ".reg .pred mine, any;\n"
        "setp.ne.u32 mine, %1, 0;\n"
        "bar.red.or.pred any, %2, 128, mine;\n"
        "selp.b32 %0, 1, 0, any;\n"
        "}"
        : "=r"(any)
        : "r"(static_cast<uint32_t>(mine)), "r"(2 + group_)
        : "memory");
    return any != 0;
  }

  // A mask of this thread's keys that are below `key`: bit i is key 8 (i / 2) + 2 (thread % 4) + i % 2 of the tile.
  static __device__ __forceinline__ uint32_t keys_below(int key, int thread) {
    const int from_mine = min(max(key - 2 * (thread % 4), 0), Shape::kKeys);
    const int count = from_mine / 8 * 2 + min(from_mine % 8, 2);
    return count >= 32 ? ~0u : (1u << count) - 1;
  }
  // Finds the keys to which each of the thread's two rows attends.
  __device__ __forceinline__ void look(uint32_t slot, int t, uint32_t iteration) {
    const int at = shared_.work[slot].origin + t * Shape::kKeys, me = thread();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Span span = span_at(p_, at_[r]);
      seen_[r] = keys_below(span.end - at, me) & ~keys_below(span.first - at, me);
    }
    for (uint32_t left = __shfl_sync(0xffffffffu, absent(iteration), 0); left; left &= left - 1) {
      const uint32_t gone = 0xfu << 4 * (__ffs(static_cast<int>(left)) - 1);
      seen_[0] &= ~gone, seen_[1] &= ~gone;
    }
  }
  // Sets scores of keys to which a row does not attend to kNothing. Branch-free.
  __device__ __forceinline__ void hide() {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const uint32_t bit = 1u << (i / 4 * 2 + i % 2);
      score_[i] = seen_[i % 4 / 2] & bit ? score_[i] : kNothing;
    }
  }

  // Converts scores to weights relative to the base of their row, as set kSet of the first operand of the second product. sum: the sums
  // of the thread's weights; zero if the second product sums them. Returns true if a weight is so large that another base is needed.
  template <int kSet>
  __device__ __forceinline__ bool weigh(float (&sum)[2]) {
    const float base[2] = {base_of(base_[0]), base_of(base_[1])};
    float part[2][2] = {};
    uint32_t all = 0;
#pragma unroll
    for (int k = 0; k < Shape::kKeys / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = i % 2;
        float weight[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          weight[j] = exp2_of(fmaf(score_[8 * k + 4 * (i / 2) + 2 * r + j], p_.scale, -base[r]));
          if constexpr (!kSumsByProduct) part[r][j] += weight[j];
        }
        weight_[kSet][k][i] = pack(weight[0], weight[1]);
        all |= weight_[kSet][k][i];
      }
    }
    sum[0] = part[0][0] + part[0][1], sum[1] = part[1][0] + part[1][1];
    // some bit of these is set in weights of 2 and above, infinities and NaN
    constexpr uint32_t kTwo = 0x40004000;
    return kSumsByProduct ? (all & kTwo) != 0 : !(sum[0] < kBeyond && sum[1] < kBeyond);
  }
  // Moves the weights of the second set to the first, where pending weights must be.
  __device__ __forceinline__ void keep_weights() {
#pragma unroll
    for (int k = 0; k < Shape::kKeys / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weight_[0][k][i] = weight_[1][k][i];
    }
  }

  // True if some value of the stage is NaN or infinite; the same in all threads of the warpgroup.
  __device__ __forceinline__ bool any_not_finite(uint32_t iteration) const {
    const uint32_t values = values_of(iteration) + 16 * thread();
    uint32_t none[4] = {};
#pragma unroll
    for (int i = 0; i < Shape::kKeyBytes / 16; i += 128) {
      const uint4 v = tile::load_shared(values + 16 * i);
      none[0] = add_none_of(v.x, none[0]), none[1] = add_none_of(v.y, none[1]);
      none[2] = add_none_of(v.z, none[2]), none[3] = add_none_of(v.w, none[3]);
    }
    uint32_t found = 0;
    for (const uint32_t pair : none) found |= not_finite(pair);
    return any_of_group(found != 0);
  }
  // True if such a value belongs to a key to which some query of the CTA attends. The values of other keys are arbitrary, possibly
  // uninitialized memory. They are overwritten with zeros, so that they have no effect; all warpgroups write the same zeros.
  __device__ __forceinline__ bool any_not_finite_seen(uint32_t slot, uint32_t iteration, int t) const {
    const uint32_t values = values_of(iteration);
    const Span span = shared_.work[slot].keys;
    const int at = shared_.work[slot].origin + t * Shape::kKeys, mine = thread();
    uint32_t found = 0;
#pragma unroll
    for (int i = 0; i < Shape::kKeyBytes / 16; i += 128) {
      const int key = (i + mine) % (Shape::kKeyHalf / 16) / (tile::kSwizzledRowBytes / 16);
      if (span.sees(at + key)) {
        const uint4 v = tile::load_shared(values + 16 * (i + mine));
        for (const uint32_t pair : {v.x, v.y, v.z, v.w}) found |= not_finite(pair);
      } else {
        tile::store_shared(values + 16 * (i + mine), make_uint4(0, 0, 0, 0));
      }
    }
    tile::fence_for_async();
    return any_of_group(found != 0);
  }

  // Adds weighted values without tensor cores, and only those of keys to which the query attends.
  __device__ __forceinline__ void add_one_by_one(uint32_t iteration) {
    const uint32_t values = values_of(iteration);
    const int lane = thread() % 32;
#pragma unroll
    for (int n = 0; n < Shape::kKeys / 8; ++n) {
#pragma unroll 1
      for (int i = 0; i < 8; ++i) {
        const int key = 8 * n + i, from = lane / 4 * 4 + i / 2;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint32_t two = __shfl_sync(0xffffffffu, weight_[0][n / 2][n % 2 * 2 + r], from);
          const float w = i % 2 ? high_of(two) : low_of(two);
          const bool sees = (__shfl_sync(0xffffffffu, seen_[r], from) >> (2 * n + i % 2) & 1) != 0;
          if constexpr (kSumsByProduct) value_[kSum + 2 * r] += w;
#pragma unroll
          for (int d = 0; d < kDim / 8; ++d) {
            const uint32_t pair =
                tile::load_shared_word(values + d / 8 * Shape::kKeyHalf +
                                       tile::swizzled(static_cast<uint32_t>(key),
                                                      static_cast<uint32_t>(d % 8 * 16 + 4 * (lane % 4))));
            if (!sees) continue;
            value_[4 * d + 2 * r] += w * low_of(pair), value_[4 * d + 2 * r + 1] += w * high_of(pair);
          }
        }
      }
    }
  }

  // Each warp converts its 16 rows of sums to y, in the shared memory of its queries, which are no longer needed; then it stores whole rows.
  __device__ __forceinline__ void write(uint32_t slot) {
    const PrefillWork work = shared_.work[slot];
    const int me = thread(), lane = me % 32;
    const Mine mine(work, group_, me);
    float share[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sum_[r];
      if constexpr (kSumsByProduct) {
        sum = value_[kSum + 2 * r];
      } else {
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      }
      const int head = work.kv_head * p_.group + (mine.row + 8 * r) % p_.group;
      share[r] = share_of(sink_of(p_, head), base_[r], sum);
    }
    const uint32_t rows = ring_ + Shape::kRingBytes + slot * Shape::kQueryBytes;
    const int first = 64 * group_ + me / 32 * 16;  // the warp's first query in the tile
    // Address of a 16-byte chunk of a row.
    const auto place = [&](int row, int chunk) {
      return rows + chunk / 8 * Shape::kQueryHalf +
             tile::swizzled(static_cast<uint32_t>(first + row), static_cast<uint32_t>(chunk % 8 * 16));
    };
#pragma unroll
    for (int d = 0; d < kDim / 8; d += 2) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* two = value_ + 4 * (d + i / 2) + 2 * (i % 2);
        // scaled() for two elements.
        pairs[i] = share[i % 2] == kNothing ? 0 : pack(two[0] * share[i % 2], two[1] * share[i % 2]);
      }
      tile::store_squares(place(lane % 16, d + lane / 16), pairs);
    }
    __syncwarp();
    constexpr int kChunks = kDim / 8, kRows = 32 / kChunks;  // a warp stores kRows rows at a time
    auto* y = static_cast<__nv_bfloat16*>(p_.y);
#pragma unroll
    for (int i = 0; i < 16; i += kRows) {
      const int row = i + lane / kChunks, chunk = lane % kChunks;
      const int query = work.queries.first + first + row;
      const uint4 eight = tile::load_shared(place(row, chunk));
      if (query > mine.last) continue;
      __nv_bfloat16* to = y + work.queries.place(p_, query, work.kv_head, kDim, p_.y_stride) + 8 * chunk;
      if (p_.y_widest) {
        *reinterpret_cast<uint4*>(to) = eight;
      } else {
        store_one_by_one(to, eight);
      }
    }
  }

  const Step& p_;
  PrefillShared<Shape>& shared_;
  uint32_t ring_;
  uint32_t barriers_;  // shared memory address of `shared_`
  int group_;
  bool fresh_;  // some row has no base yet
  // values of the previous stage are pending, that is, not added yet; their weights are weight_[0]
  bool waits_;
  uint32_t weight_[2][Shape::kKeys / 16][4];  // weight_[1]: weights of the current tile
  float score_[kScores];
  // sums of weights; in value_[kSum + 2 * row] instead if the second product computes them
  float value_[kValues], sum_[2];
  // For each row, the base of the weights
  // (see kAbove). kNothing: none yet.
  float base_[2];
  int at_[2];         // positions of the thread's two rows
  uint32_t seen_[2];  // masks of this thread's keys to which the rows attend
};

}  // namespace sluice::cuda::attention
