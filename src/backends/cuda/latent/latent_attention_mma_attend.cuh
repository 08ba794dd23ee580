// The second launch of latent_attention_mma_sm90.cu: partial results of one split of the
// keys, for 64 heads of one row, or for several rows of one sequence with up to 64 heads in
// total. These rows attend to different numbers of keys; the last row determines the splits.
//
// A tile of 64 keys is once in shared memory, in panels of 64 columns (swizzle.cuh). Its rows are the B operand of
// both products: all columns for the scores, the first `rank` columns for the latents. Each of the two warpgroups
// computes the scores of half of the keys, and the sums of half of the columns over all keys. So the warpgroups
// exchange largest scores and weights. A thread passes its weights to the thread with the same index in the other
// warpgroup, because accumulators of scores have the layout of the second product's A operand (wgmma_registers.cuh).
//
// Rows of absent keys are zeros in shared memory, and their scores are masked, so that the
// contents of the cache have no effect there. All heads of a row attend to the same keys.
#pragma once
#include "backends/cuda/attention/rows.cuh"
#include "backends/cuda/latent/latent_attention_mma_call.cuh"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/warp.cuh"
#include "backends/cuda/tile/wgmma_columns.cuh"

namespace sluice::cuda::latent_mma {

constexpr int kAttendThreads = 256, kGroup = 128;  // kGroup: threads per warpgroup
constexpr int kHalfKeys = kTileKeys / 2;           // keys whose scores a warpgroup computes

// Sizes for a rank of 128 * kPanels. kPanels: panels of columns that a warpgroup sums.
template <int kPanels>
struct AttendShape {
  static constexpr int kRank = 2 * kPanels * kPanel, kAll = 2 * kPanels + 1;  // panels of a row
  static constexpr int kPanelBytes = kTileKeys * tile::kSwizzledRowBytes, kTileBytes = kAll * kPanelBytes;
  static constexpr int kWide = kPanels == 1 ? 64 : 128, kProducts = kPanels * kPanel / kWide;
  static_assert(kHeads == kTileKeys);  // queries have the layout of a tile
};

// Shared memory of attend(), after the queries and two tiles.
struct AttendScratch {
  uint4 weights[2][2][kGroup];    // [warpgroup][16 keys][thread]
  float of_heads[2][kHeads];      // [warpgroup][head]
  uint8_t any[2][kHeads];         // [warpgroup][head]: some key is present
  uint8_t present[2][kTileKeys];  // [tile][key]
  int64_t sequence;
  int group[kAttendThreads / kWarp];  // for find_group(): number of groups per warp
  int found[2];                       // for find_group(): first row of the group; its number of rows
};
template <int kPanels>
constexpr size_t kAttendBytes = 3 * AttendShape<kPanels>::kTileBytes + sizeof(AttendScratch) +
                                1024;  // bytes to align the start

// The sequence of a row, or -1. Called by all threads of the CTA.
__device__ __forceinline__ int64_t sequence_of(const Parameters& p, int64_t row, int64_t* found) {
  if (threadIdx.x == 0) *found = -1;
  __syncthreads();
  for (int64_t s = threadIdx.x; s < p.sequences; s += kAttendThreads)
    if (row >= p.q_begin[s] && row < p.q_begin[s + 1]) *found = s;
  __syncthreads();
  return *found;
}

// The rows of a CTA: `count` rows, beginning with `first`, which counts from
// the call's first row. sequence: -1 if the rows belong to no sequence.
struct Rows {
  int64_t sequence;
  int first, count;  // 0: the CTA has no work
};

// Finds the CTA's group of rows. Groups have up to rows_of_cta rows, all of one sequence, or
// all before the first sequence, or all after the last. Called by all threads of the CTA.
__device__ __forceinline__ Rows find_group(const Parameters& p, int group, AttendScratch& scratch) {
  const int own = static_cast<int>(threadIdx.x), lane = own % kWarp, warp = own / kWarp;
  const auto begin_of =
      // start of sequence s - 1, counted from this call's first row; s is 0 to sequences + 2
      [&](int64_t s) {
        const int64_t row = s == 0 ? p.first : s <= p.sequences + 1 ? p.q_begin[s - 1] : p.first + p.rows;
        return static_cast<int>(min(max(row - p.first, int64_t{0}), p.rows));
      };
  if (own == 0) scratch.found[1] = 0;
  int before = 0;
  for (int64_t base = 0; base < p.sequences + 2; base += kAttendThreads) {
    const int64_t s = base + own;
    const int begin = s < p.sequences + 2 ? begin_of(s) : 0;
    const int rows = s < p.sequences + 2 ? max(begin_of(s + 1) - begin, 0) : 0;
    const int groups = (rows + p.rows_of_cta - 1) / p.rows_of_cta;
    int sum = groups;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int left = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += left;
    }
    __syncthreads();  // scratch.group may be overwritten
    if (lane == kWarp - 1) scratch.group[warp] = sum;
    __syncthreads();
    int all = 0;
#pragma unroll
    for (int w = 0; w < kAttendThreads / kWarp; ++w) {
      if (w < warp) sum += scratch.group[w];
      all += scratch.group[w];
    }
    const int mine = group - before - (sum - groups);
    if (mine >= 0 && mine < groups) {
      const int at = mine * p.rows_of_cta;
      scratch.sequence = s == 0 || s > p.sequences ? -1 : s - 1;
      scratch.found[0] = begin + at, scratch.found[1] = min(rows - at, p.rows_of_cta);
    }
    before += all;
    if (group < before) break;
  }
  __syncthreads();
  return {scratch.sequence, scratch.found[0], scratch.found[1]};
}

// Copies 16-byte chunk `to` (its address in the first panel) of every panel
// of a row. Zeros if `there` is false, and in the last panel unless in_rope.
template <int kPanels>
__device__ __forceinline__ void copy_chunks(uint32_t to, const Bf16* from, bool there, bool in_rope) {
  using Shape = AttendShape<kPanels>;
#pragma unroll
  for (int i = 0; i < Shape::kAll; ++i)
    tile::copy_16(to + i * Shape::kPanelBytes, from + i * kPanel, there && (i < Shape::kAll - 1 || in_rope));
}

// Copies the rows of a tile of keys. Eight threads copy the rows of two keys, which are 32 apart.
template <int kPanels>
class KeyReader {
 public:
  __device__ __forceinline__ KeyReader(const Parameters& p, int64_t sequence, int end)
      : p_(p),
        table_(p.page_table + sequence * p.pages_per_seq),
        end_(end),
        key_(static_cast<int>(threadIdx.x) / 8),
        chunk_(static_cast<int>(threadIdx.x) % 8) {}

  // Loads the page numbers for the tile at position `at`, which the next fetch() copies.
  __device__ __forceinline__ void look_up(int at) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int position = at + key_ + i * kHalfKeys;
      page_[i] = position < end_ ? table_[position / p_.page_size] : -1;
    }
  }
  __device__ __forceinline__ void fetch(int at, uint32_t to, uint8_t* present) const {
    using Shape = AttendShape<kPanels>;
    const uint32_t place =
        to + tile::swizzled(static_cast<uint32_t>(key_), static_cast<uint32_t>(16 * chunk_));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = key_ + i * kHalfKeys;
      const bool there = page_[i] >= 0 && page_[i] < p_.pages;
      const int64_t row =
          there ? static_cast<int64_t>(page_[i]) * p_.page_size + (at + key) % p_.page_size : 0;
      copy_chunks<kPanels>(place + i * kHalfKeys * tile::kSwizzledRowBytes,
                           p_.cache + row * (Shape::kRank + p_.rope) + 8 * chunk_, there,
                           8 * chunk_ < p_.rope);
      if (chunk_ == 0) present[key] = there;
    }
  }

 private:
  const Parameters& p_;
  const int32_t* table_;
  int end_, key_, chunk_;
  int page_[2];
};

// A thread's sums: of two heads, which are eight apart, over half of the keys (scores) or for half of the columns (latents).
template <int kPanels>
class HeadSums {
 public:
  using Shape = AttendShape<kPanels>;
  // end, next_end: for each of the thread's two heads, the first position to which the head does not attend.
  __device__ __forceinline__ HeadSums(AttendScratch& scratch, uint32_t queries, int end, int next_end)
      : scratch_(scratch),
        queries_(queries),
        group_(tile::uniform(static_cast<int>(threadIdx.x) / kGroup)),
        thread_(static_cast<int>(threadIdx.x) % kGroup),
        end_{end, next_end} {
#pragma unroll
    for (int n = 0; n < Shape::kProducts; ++n) {
#pragma unroll
      for (int i = 0; i < Shape::kWide / 2; ++i) value_[n][i] = 0;
    }
  }

  // Processes the tile of keys that begins at position `at`. It must be in shared memory and visible to wgmma.
  __device__ __forceinline__ void take(uint32_t keys, const uint8_t* present, int at, float scale) {
    float score[kHalfKeys / 2];
    multiply_keys(score, keys);
    float most[2] = {attention::kNothing, attention::kNothing}, factor[2], base[2];
#pragma unroll
    for (int i = 0; i < kHalfKeys / 2; ++i) {
      const int key = kHalfKeys * group_ + i / 4 * 8 + 2 * (thread_ % 4) + i % 2;
      const bool there = present[key] != 0 && at + key < end_[i % 4 / 2];
      any_[i % 4 / 2] |= there;
      score[i] = there ? score[i] * scale : attention::kNothing;
      most[i % 4 / 2] = fmaxf(most[i % 4 / 2], score[i]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = fmaxf(most[r], __shfl_xor_sync(kAllLanes, most[r], 1));
      most[r] = fmaxf(most[r], __shfl_xor_sync(kAllLanes, most[r], 2));
      if (thread_ % 4 == 0) scratch_.of_heads[group_][head() + 8 * r] = most[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float largest = fmaxf(largest_[r], fmaxf(most[r], scratch_.of_heads[1 - group_][head() + 8 * r]));
      factor[r] = attention::rescale(largest_[r], largest);
      largest_[r] = largest;
      base[r] = attention::base_of(largest);
      sum_[r] *= factor[r];
    }
#pragma unroll
    for (int i = 0; i < kHalfKeys / 2; ++i) {
      score[i] = attention::exp2_of(score[i] - base[i % 4 / 2]);
      sum_[i % 4 / 2] += score[i];
    }
    uint32_t mine[2][4], other[2][4];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        mine[k][i] = attention::pack(score[8 * k + 2 * i], score[8 * k + 2 * i + 1]);
      scratch_.weights[group_][k][thread_] = make_uint4(mine[k][0], mine[k][1], mine[k][2], mine[k][3]);
    }
    if (__any_sync(kAllLanes, factor[0] != 1.f || factor[1] != 1.f)) {
#pragma unroll
      for (int n = 0; n < Shape::kProducts; ++n) {
#pragma unroll
        for (int i = 0; i < Shape::kWide / 2; ++i) value_[n][i] *= factor[i % 4 / 2];
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint4 w = scratch_.weights[1 - group_][k][thread_];
      other[k][0] = w.x, other[k][1] = w.y, other[k][2] = w.z, other[k][3] = w.w;
    }
    add_latents(keys, mine, other);
  }

  // Writes the partial results of heads 0 to heads - 1. parts and latents point at the first head; heads are `splits` apart.
  __device__ __forceinline__ void leave(Part* parts, Bf16* latents, int splits, int heads) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum_[r] += __shfl_xor_sync(kAllLanes, sum_[r], 1);
      sum_[r] += __shfl_xor_sync(kAllLanes, sum_[r], 2);
      const uint32_t some = __ballot_sync(kAllLanes, any_[r]) >> (thread_ % kWarp / 4 * 4) & 0xfu;
      if (thread_ % 4 == 0)
        scratch_.of_heads[group_][head() + 8 * r] = sum_[r], scratch_.any[group_][head() + 8 * r] = some != 0;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int h = head() + 8 * r;
      if (h >= heads) break;
      const bool any = (scratch_.any[0][h] | scratch_.any[1][h]) != 0;
      const int64_t part = static_cast<int64_t>(h) * splits;
      if (group_ == 0 && thread_ % 4 == 0)
        parts[part] = {largest_[r], scratch_.of_heads[0][h] + scratch_.of_heads[1][h],
                       any ? kSomeKeys : kNoKeys, 0};
      if (!any) continue;
      Bf16* const to = latents + part * Shape::kRank + group_ * kPanels * kPanel + 8 * (thread_ % 4);
#pragma unroll
      for (int n = 0; n < Shape::kProducts; ++n) {
#pragma unroll
        for (int i = 0; i < Shape::kWide / 32; ++i) {
          uint32_t pair[4];
#pragma unroll
          for (int j = 0; j < 4; ++j)
            pair[j] =
                attention::pack(value_[n][16 * i + 4 * j + 2 * r], value_[n][16 * i + 4 * j + 2 * r + 1]);
          *reinterpret_cast<uint4*>(to + n * Shape::kWide + 32 * i) =
              make_uint4(pair[0], pair[1], pair[2], pair[3]);
        }
      }
    }
  }

 private:
  // The first of the thread's two heads.
  __device__ __forceinline__ int head() const { return thread_ / kWarp * 16 + thread_ % kWarp / 4; }

  __device__ __forceinline__ void multiply_keys(float (&score)[kHalfKeys / 2], uint32_t keys) const {
    const uint64_t a = tile::describe_tile(queries_),
                   b = tile::describe_tile(keys + group_ * kHalfKeys * tile::kSwizzledRowBytes);
#pragma unroll
    for (int i = 0; i < kHalfKeys / 2; ++i) score[i] = 0;
    tile::fence_operands();
#pragma unroll
    for (int k = 0; k < Shape::kAll * kPanel / 16; ++k) {
      const uint64_t at = k / 4 * (Shape::kPanelBytes / tile::kDescribed) + k % 4 * tile::kNext16;
      tile::multiply<kHalfKeys>(score, a + at, b + at, k > 0);
    }
    tile::commit_group();
    tile::wait_groups<0>();
    tile::hold(score);
  }

  // Adds the rows of all keys, weighted: first those with this warpgroup's weights, then those with the other warpgroup's.
  __device__ __forceinline__ void add_latents(uint32_t keys, const uint32_t (&mine)[2][4],
                                              const uint32_t (&other)[2][4]) {
    const uint64_t columns =
        tile::describe_columns(keys + group_ * kPanels * Shape::kPanelBytes, Shape::kPanelBytes);
    const uint64_t my_keys = columns + 2 * group_ * tile::kNextRows16,
                   other_keys = columns + 2 * (1 - group_) * tile::kNextRows16;
    tile::fence_operands();
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int n = 0; n < Shape::kProducts; ++n)
        tile::multiply_columns<Shape::kWide>(value_[n], mine[k],
                                             my_keys + k * tile::kNextRows16 + n * kNextProduct);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int n = 0; n < Shape::kProducts; ++n)
        tile::multiply_columns<Shape::kWide>(value_[n], other[k],
                                             other_keys + k * tile::kNextRows16 + n * kNextProduct);
    }
    tile::commit_group();
    tile::wait_groups<0>();
#pragma unroll
    for (int n = 0; n < Shape::kProducts; ++n) tile::hold(value_[n]);
  }
  static constexpr uint64_t kNextProduct = Shape::kWide / kPanel * Shape::kPanelBytes / tile::kDescribed;

  AttendScratch& scratch_;
  uint32_t queries_;
  int group_, thread_;
  int end_[2];
  bool any_[2] = {};  // some of the thread's keys is present
  float largest_[2] = {attention::kNothing, attention::kNothing}, sum_[2] = {};
  float value_[Shape::kProducts][Shape::kWide / 2];
};

// Grid: splits along x, groups of heads along y, rows along z. kRows: groups of rows of one sequence along z, with all their heads.
template <int kPanels, bool kRows>
__global__ void __launch_bounds__(kAttendThreads, 1) attend(const __grid_constant__ Parameters p) {
  using Shape = AttendShape<kPanels>;
  extern __shared__ uint8_t shared[];
  uint8_t* const aligned = shared + (-tile::shared_address(shared) & 1023u);
  const uint32_t queries = tile::shared_address(aligned), tiles = queries + Shape::kTileBytes;
  AttendScratch& scratch = *reinterpret_cast<AttendScratch*>(aligned + 3 * Shape::kTileBytes);
  const int own = static_cast<int>(threadIdx.x), split = static_cast<int>(blockIdx.x);
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  tile::release_next();
  tile::wait_for_previous();
  Rows rows{-1, static_cast<int>(blockIdx.z), 1};
  if constexpr (kRows) {
    rows = find_group(p, static_cast<int>(blockIdx.z), scratch);
    if (rows.count == 0) return;
  } else {
    rows.sequence = sequence_of(p, p.first + rows.first, &scratch.sequence);
  }
  // With kRows: all heads of the first row, then of the next row, and so on.
  const int heads = kRows ? rows.count * p.heads : min(p.heads - first_head, kHeads);
  const int64_t query = static_cast<int64_t>(rows.first) * p.heads + first_head,
                part = query * p.splits + split;
  const int64_t s = rows.sequence;
  // Number of positions to which row `row` of the CTA attends.
  const auto seen_by = [&](int row) {
    // Number of rows from this row to the end of the sequence.
    const int64_t behind = p.q_begin[s + 1] - (p.first + rows.first + row);
    return static_cast<int>(max(min(p.kv_len[s] - behind + 1, p.pages_per_seq * p.page_size), int64_t{0}));
  };
  Span keys{0, 0};
  if (s >= 0) keys = keys_of_split(seen_by(rows.count - 1), split, p.fewest_tiles);
  if (keys.begin >= keys.end) {
    if (own < heads)
      p.parts[part + static_cast<int64_t>(own) * p.splits] = {0, 0, s < 0 ? kNobody : kNoKeys, 0};
    return;
  }
#pragma unroll
  for (int h = own / 8; h < kHeads; h += kAttendThreads / 8) {
    const Bf16* const from =
        p.queries + (query + min(h, heads - 1)) * (Shape::kRank + kRopeColumns) + own % 8 * 8;
    copy_chunks<kPanels>(
        queries + tile::swizzled(static_cast<uint32_t>(h), static_cast<uint32_t>(own % 8 * 16)), from,
        h < heads, true);
  }
  KeyReader<kPanels> reader(p, s, keys.end);
  reader.look_up(keys.begin);
  reader.fetch(keys.begin, tiles, scratch.present[0]);
  reader.look_up(keys.begin + kTileKeys);
  tile::end_copies();
  const int own_head = own % kGroup / kWarp * 16 + own % kWarp / 4;
  const auto end_of = [&](int head) {
    return kRows ? seen_by(min(head / p.heads, rows.count - 1)) : keys.end;
  };
  HeadSums<kPanels> sums(scratch, queries, end_of(own_head), end_of(own_head + 8));
  uint32_t stage = 0;
  for (int at = keys.begin; at < keys.end; at += kTileKeys, stage ^= 1) {
    tile::wait_copies<0>();
    tile::fence_for_async();
    __syncthreads();  // the tile has arrived, and all threads have read the previous tile
    if (at + kTileKeys < keys.end) {
      reader.fetch(at + kTileKeys, tiles + (stage ^ 1) * Shape::kTileBytes, scratch.present[stage ^ 1]);
      reader.look_up(at + 2 * kTileKeys);
    }
    tile::end_copies();
    sums.take(tiles + stage * Shape::kTileBytes, scratch.present[stage], at, p.scale);
  }
  sums.leave(p.parts + part, p.latents + part * Shape::kRank, p.splits, heads);
}

}  // namespace sluice::cuda::latent_mma
