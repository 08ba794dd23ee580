// Device code of route_group_lanes_sm90. A CTA chooses the experts of its
// tokens, counts them, exchanges counts with the other CTAs, and writes the rows
// of its slots. route_group_lanes_sm90.cu has the descriptor and the launch.
#pragma once
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/grid_barrier.cuh"
#include "backends/cuda/tile/lane_choice.cuh"
#include "backends/cuda/tile/shared_slots.cuh"
#include "backends/cuda/tile/warp.cuh"

namespace sluice::cuda::group_lanes {

// Maximum CTAs per cluster and per grid, and maximum threads per CTA.
constexpr int kClusterBlocks = 16, kGridBlocks = 128, kThreadsMax = 512;
// Count vectors that a CTA adds up: one per CTA of a cluster, or one per group of CTAs of a grid.
constexpr int kSums = 16;

// Parameters of a launch.
struct Lanes {
  tile::TokenRule rule;
  const void* logits;
  int64_t logits_stride;
  const float* bias;
  int bf16, whole;  // whole: rows are aligned to 16 bytes and are whole 16-byte chunks
  uint32_t tokens, tokens_per_block, words;
  uint32_t tile_shift, tile_less_one;  // if there are no tiles: a shift that gives every expert 0 tiles; 0
  uint32_t tiles_max, shared_tiles;    // shared_tiles: tiles of all shared experts
  tile::SharedSlots shared;
  float scale;
  int32_t *ids, *row_count, *row_begin, *order, *position, *tile_count, *tiles;
  float* weights;
  uint8_t* counts;       // [CTAs, experts] of a grid
  uint32_t* grid_words;  // a counter that is zero before and after the launch
};

template <int kExperts, int kList, int kLanes>
struct alignas(16) Memory {
  using Shape = tile::LaneShape<kExperts, kList, kLanes>;
  uint64_t arrived;                             // mbarrier: counts of all CTAs of the cluster have arrived
  alignas(16) uint16_t count[kSums][kExperts];  // counts of a CTA or of a group of CTAs
  // In a cluster: this CTA's counts. In a grid: the counts of the preceding CTAs in its group.
  alignas(16) uint16_t part[kExperts];
  alignas(16) std::byte bias[Shape::template kRowBytes<4>];
  uint32_t begin[kExperts];            // first row
  uint32_t before[kExperts];           // rows in preceding CTAs
  uint32_t tile_begin[kExperts];       // first tile
  uint32_t of_warp[2][kExperts / 32];  // rows and tiles per warp
  tile::LaneMemory<Shape::kTokens> warp[kThreadsMax / 32];
};
// Follows Memory: the mask [experts, words], slots and weights [tokens per CTA, kList], and each warp's rows of logits.
template <int kExperts, int kList, int kLanes>
size_t shared_bytes(const Lanes& p, int threads) {
  using M = Memory<kExperts, kList, kLanes>;
  const auto warps = static_cast<size_t>(threads / 32), tokens = size_t{p.tokens_per_block};
  const size_t a_pass = warps * M::Shape::kTokens, rows = tokens > a_pass ? 2 * a_pass : a_pass;
  const size_t slots = tokens * kList;
  return sizeof(M) + size_t{kExperts} * p.words * 4 + (slots * 8 + 15) / 16 * 16 +
         rows * M::Shape::template kRowBytes<4>;
}

// The number of this CTA's tokens that chose an expert.
__device__ __forceinline__ uint32_t count_bits(const uint32_t* mask, uint32_t words, uint32_t expert) {
  uint32_t count = __popc(mask[expert * words]);
#pragma unroll 1
  for (uint32_t w = 1; w < words; ++w) count += __popc(mask[expert * words + w]);
  return count;
}

// Sends this CTA's counts, m.part, to all CTAs of the cluster. The warps divide the receivers; a lane sends 8 experts.
template <class M>
__device__ __forceinline__ void send_counts(M& m, uint32_t lane, uint32_t warp, uint32_t warps) {
  constexpr uint32_t kExperts = sizeof(m.part) / sizeof(uint16_t);
#pragma unroll 1
  for (uint32_t e = 8 * lane; e < kExperts; e += 256) {
    const uint4 counts = *reinterpret_cast<const uint4*>(m.part + e);
    const uint32_t at = tile::shared_address(&m.count[tile::cluster_rank()][e]);
#pragma unroll 1
    for (uint32_t to = warp; to < kClusterBlocks; to += warps)
      tile::store_remote(tile::remote_address(at, to), counts,
                         tile::remote_address(tile::shared_address(&m.arrived), to));
  }
}

// Adds up rows of 16 bytes, byte by byte, into 16 numbers: of kRows rows, those
// for which take(row) is true. small: the sum of four bytes is always below 256.
template <int kRows, class Take>
__device__ __forceinline__ void add_bytes(uint16_t* to, const uint4 (&row)[kRows], bool small, Take take) {
  uint32_t even[4] = {}, odd[4] = {}, bytes[4] = {};
  const auto widen = [&] {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      even[w] += bytes[w] & 0x00ff00ff, odd[w] += bytes[w] >> 8 & 0x00ff00ff;
      bytes[w] = 0;
    }
  };
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (take(i)) bytes[0] += row[i].x, bytes[1] += row[i].y, bytes[2] += row[i].z, bytes[3] += row[i].w;
    if (!small || i % 4 == 3) widen();
  }
#pragma unroll
  for (int w = 0; w < 4; w += 2) {
    const auto pair = [&](int k) { return __byte_perm(even[k], odd[k], 0x5410); };
    const auto next = [&](int k) { return __byte_perm(even[k], odd[k], 0x7632); };
    reinterpret_cast<uint4*>(to)[w / 2] = uint4{pair(w), next(w), pair(w + 1), next(w + 1)};
  }
}

// Reads the counts of all CTAs of the grid and adds them up in kSums groups of adjacent CTAs. Sets
// `part` to the counts of the preceding CTAs in this CTA's group. Returns the index of that group.
template <class M>
__device__ __forceinline__ uint32_t gather_counts(M& m, const Lanes& p, uint32_t tid) {
  constexpr uint32_t kExperts = sizeof(m.part) / sizeof(uint16_t), kColumns = kExperts / 16;
  constexpr int kEach = kGridBlocks / kSums;
  const uint32_t sum = tid / kColumns, column = tid % kColumns * 16;
  const uint32_t mine = blockIdx.x / kEach;
  if (sum >= kSums) return mine;
  uint4 row[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t block = sum * kEach + i;
    row[i] = block < gridDim.x ? __ldcg(reinterpret_cast<const uint4*>(p.counts + block * kExperts + column))
                               : uint4{0, 0, 0, 0};
  }
  const bool small = p.tokens_per_block < 64;
  add_bytes(m.count[sum] + column, row, small, [](int) { return true; });
  if (sum == mine)
    add_bytes(m.part + column, row, small,
              [&](int i) { return static_cast<uint32_t>(i) < blockIdx.x % kEach; });
  return mine;
}

// What a CTA works on: its tokens, its threads, and addresses in shared memory. kGrid: the CTAs form a grid, otherwise a cluster.
template <int kExperts, int kList, tile::TeamKind kKind, int kLanes, bool kGrid>
struct Cta {
  using M = Memory<kExperts, kList, kLanes>;
  using Shape = typename M::Shape;
  static constexpr uint32_t kRowBytes = Shape::template kRowBytes<4>;

  const Lanes& p;
  M& m;
  uint32_t tid, threads, lane, warp, warps;
  uint32_t sub, top_k;     // sub: index of this lane among the lanes of its token
  uint32_t first, here;    // first token; number of tokens
  uint32_t slots, a_pass;  // entries of `slot` and `weight`; tokens per pass, Shape::kTokens per warp
  uint32_t* mask;          // [experts, words]: a bit for each token that chose the expert
  uint32_t* slot;          // [tokens, kList]: the expert, later | its rank << 16
  float* weight;           // [tokens, kList]
  std::byte* rows;         // logits of two passes

  __device__ __forceinline__ Cta(const Lanes& lanes, uint4* shared)
      : p(lanes),
        m(*reinterpret_cast<M*>(shared)),
        tid(threadIdx.x),
        threads(blockDim.x),
        lane(tid % 32),
        // The shuffle tells the compiler that the value is warp-uniform.
        warp(__shfl_sync(tile::kAllLanes, tid / 32, 0)),
        warps(threads / 32),
        sub(lane % kLanes),
        top_k(static_cast<uint32_t>(p.rule.top_k)),
        first(blockIdx.x * p.tokens_per_block),
        here(first < p.tokens ? min(p.tokens_per_block, p.tokens - first) : 0),
        slots(here * kList),
        a_pass(warps * Shape::kTokens) {
    const uint32_t slots_max = p.tokens_per_block * kList;
    mask = reinterpret_cast<uint32_t*>(&m + 1);
    slot = mask + kExperts * p.words;
    weight = reinterpret_cast<float*>(slot + slots_max);
    rows = reinterpret_cast<std::byte*>(slot + (slots_max * 2 + 3) / 4 * 4);
  }

  // Clears the masks and, in a cluster, begins the exchange. Returns the bias of expert `tid`, a weight, so this may precede the wait.
  __device__ __forceinline__ float begin() const {
#pragma unroll 1
    for (uint32_t i = tid; i < kExperts * p.words; i += threads) mask[i] = 0;
    float bias = 0;
    if (tile::kTeamRules[kKind].by_score && p.bias && tid < kExperts) bias = p.bias[tid];
    if (!kGrid) {
      if (tid == 0) {
        tile::barrier_init(&m.arrived, 1);
        tile::barrier_visible();
      }
      tile::cluster_arrive();
    }
    return bias;
  }

  // Chooses the experts of all tokens. During a pass the logits of the next pass are loaded.
  __device__ __forceinline__ void choose(float bias) const {
    fetch(0, 0);
    if (tile::kTeamRules[kKind].by_score && tid < kExperts)
      reinterpret_cast<float*>(m.bias + tid / Shape::kPerLane *
                                            Shape::template kPitch<4>)[tid % Shape::kPerLane] = bias;
    __syncthreads();  // mask and bias
#pragma unroll 1
    for (uint32_t start = 0, pass = 0; start < here; start += a_pass, ++pass) {
      const uint32_t t = start + warp * Shape::kTokens + lane / kLanes;
      if (start + a_pass < here) {
        fetch(start + a_pass, pass + 1);
        tile::wait_copies<1>();
      } else {
        tile::wait_copies<0>();
      }
      __syncwarp();
      if (start + warp * Shape::kTokens >= here) continue;
      const tile::Chosen chosen = tile::choose_by_lanes<kExperts, kList, kLanes, kKind>(
          p.rule, rows_of(pass), p.bf16, reinterpret_cast<float*>(m.bias), m.warp[warp]);
      if (t < here && sub < top_k) {
        const auto id = static_cast<uint32_t>(chosen.expert);
        slot[t * kList + sub] = id;
        weight[t * kList + sub] = chosen.weight * p.scale;
        atomicOr(mask + id * p.words + t / 32, 1u << t % 32);
      }
    }
  }

  // Counts this CTA's tokens of each expert, and sends the counts to the other CTAs.
  __device__ __forceinline__ void send_own_counts() const {
    if (tid < kExperts) {
      const uint32_t count = count_bits(mask, p.words, tid);
      if (kGrid) {
        p.counts[blockIdx.x * kExperts + tid] = static_cast<uint8_t>(count);
      } else {
        m.part[tid] = static_cast<uint16_t>(count);
      }
    }
    __syncthreads();
    if (kGrid) {
      if (tid == 0) tile::arrive_at_grid_barrier(p.grid_words);
    } else {
      tile::cluster_wait();
      if (tid == 0) tile::barrier_expect(&m.arrived, sizeof m.count);
      send_counts(m, lane, warp, warps);
    }
  }

  // Writes ids and weights, and adds to each entry of `slot` its rank among this CTA's slots of the same expert.
  __device__ __forceinline__ void write_choices() const {
#pragma unroll 1
    for (uint32_t i = tid; i < slots; i += threads) {
      const uint32_t t = i / kList, k = i % kList, at = (first + t) * p.shared.all + k;
      if (k >= top_k) continue;
      const uint32_t id = slot[i];
      const uint32_t* bits = mask + id * p.words;
      uint32_t rank = __popc(bits[t / 32] & ((1u << t % 32) - 1));
#pragma unroll 1
      for (uint32_t w = 0; w < t / 32; ++w) rank += __popc(bits[w]);
      slot[i] = id | rank << 16;
      p.ids[at] = static_cast<int>(id);
      p.weights[at] = weight[i];
    }
  }

  // Waits for the counts of all CTAs. Returns how many count vectors are entirely of preceding CTAs.
  __device__ __forceinline__ uint32_t wait_for_counts() const {
    uint32_t mine = blockIdx.x;
    if (kGrid) {
      if (tid == 0) tile::wait_at_grid_barrier(p.grid_words, gridDim.x);
      __syncthreads();
      if (tid == 0) tile::leave_grid_barrier(p.grid_words, gridDim.x);
      mine = gather_counts(m, p, tid);
      __syncthreads();
    } else {
      tile::barrier_wait(&m.arrived, 0);
    }
    return mine;
  }

  // Computes each expert's first row and tile, and its rows in preceding CTAs. CTA 0 also
  // writes the outputs that are per expert. Returns the number of tiles of chosen experts.
  __device__ __forceinline__ uint32_t place_experts(uint32_t mine) const {
    // Prefix sums of rows and tiles: as two numbers, or as one word with 16 bits for each.
    constexpr int kNumbers = kGrid ? 2 : 1;
    uint32_t total = 0, own[kNumbers] = {}, up_to[kNumbers] = {}, all[kNumbers] = {};
    if (tid < kExperts) {
      uint32_t before = kGrid ? m.part[tid] : 0;
#pragma unroll
      for (uint32_t s = 0; s < kSums; ++s) {
        const uint32_t n = m.count[s][tid];
        total += n;
        before += s < mine ? n : 0;
      }
      m.before[tid] = before;
      const uint32_t tiles = (total + p.tile_less_one) >> p.tile_shift;
      own[0] = kGrid ? total : total | tiles << 16;
      own[kNumbers - 1] = kGrid ? tiles : own[0];
#pragma unroll
      for (int k = 0; k < kNumbers; ++k) {
        up_to[k] = own[k];
        tile::add_lanes_before(static_cast<int>(lane), up_to[k]);
        if (lane == 31) m.of_warp[k][warp] = up_to[k];
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kNumbers; ++k)
#pragma unroll
      for (uint32_t w = 0; w < kExperts / 32; ++w) {
        const uint32_t n = m.of_warp[k][w];
        up_to[k] += w < warp ? n : 0;
        all[k] += n;
      }
    const auto rows_in = [](const uint32_t(&n)[kNumbers]) { return kGrid ? n[0] : n[0] & 0xffff; };
    const auto tiles_in = [](const uint32_t(&n)[kNumbers]) { return kGrid ? n[kNumbers - 1] : n[0] >> 16; };
    const uint32_t chosen_tiles = tiles_in(all);
    if (tid < kExperts) {
      const uint32_t begin = rows_in(up_to) - total;
      m.begin[tid] = begin;
      m.tile_begin[tid] = tiles_in(up_to) - tiles_in(own);
      if (blockIdx.x == 0) {
        p.row_count[tid] = static_cast<int>(total);
        p.row_begin[tid] = static_cast<int>(begin);
        if (tid == kExperts - 1) p.row_begin[kExperts] = static_cast<int>(begin + total);
        if (tid == 0 && p.tile_count) *p.tile_count = static_cast<int>(chosen_tiles + p.shared_tiles);
      }
    }
    __syncthreads();
    return chosen_tiles;
  }

  // Writes the rows of this CTA's slots, and the tiles that begin with one of these rows.
  __device__ __forceinline__ void write_rows() const {
#pragma unroll 1
    for (uint32_t i = tid; i < slots; i += threads) {
      const uint32_t k = i % kList, at = (first + i / kList) * p.shared.all + k;
      if (k >= top_k) continue;
      const uint32_t id = slot[i] & 0xffff, within = m.before[id] + (slot[i] >> 16),
                     row = m.begin[id] + within;
      p.position[at] = static_cast<int>(row);
      p.order[row] = static_cast<int>(at);
      if (p.tiles_max > 0 && (within & p.tile_less_one) == 0)
        reinterpret_cast<int2*>(p.tiles)[m.tile_begin[id] + (within >> p.tile_shift)] =
            int2{static_cast<int>(id), static_cast<int>(row)};
    }
  }

  // Writes the unused entries of the list of tiles, and the rows of shared experts.
  __device__ __forceinline__ void write_rest(uint32_t chosen_tiles) const {
#pragma unroll 1
    for (uint32_t i = chosen_tiles + p.shared_tiles + blockIdx.x * threads + tid; i < p.tiles_max;
         i += gridDim.x * threads)
      reinterpret_cast<int2*>(p.tiles)[i] = int2{-1, -1};
    if (p.shared.count == 0) return;
#pragma unroll 1
    for (uint32_t t = tid; t < here; t += threads) {
#pragma unroll 1
      for (uint32_t which = 0; which < p.shared.count; ++which)
        tile::put_shared_row(p, first + t, which, p.tokens * top_k, chosen_tiles);
    }
  }

 private:
  // The logits of this warp's tokens of a pass, in shared memory.
  __device__ __forceinline__ std::byte* rows_of(uint32_t pass) const {
    return rows + (pass % 2 * a_pass + warp * Shape::kTokens) * kRowBytes;
  }
  // Issues the copies of a pass's logits. Lanes without a token repeat the last token.
  __device__ __forceinline__ void fetch(uint32_t start, uint32_t pass) const {
    const uint32_t t = start + warp * Shape::kTokens + lane / kLanes;
    if (start + warp * Shape::kTokens < here) {
      const int64_t at = (first + min(t, here - 1)) * p.logits_stride;
      std::byte* to = rows_of(pass) + lane / kLanes * kRowBytes;
      if (p.bf16) {
        tile::fetch_row<Shape, kLanes>(to, static_cast<const __nv_bfloat16*>(p.logits) + at, p.whole, sub);
      } else {
        tile::fetch_row<Shape, kLanes>(to, static_cast<const float*>(p.logits) + at, p.whole, sub);
      }
    }
    tile::end_copies();
  }
};

}  // namespace sluice::cuda::group_lanes
