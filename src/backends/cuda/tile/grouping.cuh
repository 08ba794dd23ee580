// Computes ops/group_rows.h with a grid of CTAs. A CTA handles the slots
// of some adjacent tokens; a cluster handles the slots of its CTAs.
//
// A mask in shared memory has one bit per (expert, slot). The rank of a slot within its expert is the number of bits
// of the expert before the slot's bit, so nothing is sorted and the order is stable. The CTAs of a cluster send each
// other their counts. If the grid is one cluster, rows follow from ranks and counts. In a larger grid, every cluster
// writes its counts and the ranks within the cluster to global memory, and a second launch converts ranks to rows.
//
// A kernel calls, in this order: begin_groups, wait_for_previous, place() for each slot, end_groups.
#pragma once
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/group_grid.h"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/warp.cuh"
#include "ops/group_rows.h"

namespace sluice::cuda::tile {

// A GroupRows problem, its tensors and its grid, as a kernel parameter.
struct Grouping {
  int tokens = 0, slots = 1, align_shift = 0;
  int experts = 1, padded = 8;  // padded_experts(experts)
  int tile_shift = -1;          // -1: no list of tiles
  int rows = 0, tiles_max = 0;
  GroupGrid grid;
  const int32_t* ids = nullptr;
  int32_t *row_count = nullptr, *row_begin = nullptr, *order = nullptr, *position = nullptr;
  int32_t *tile_count = nullptr, *tiles = nullptr;
  uint32_t* cluster_count = nullptr;  // [clusters, experts]; null if there is one cluster
};

inline int log2_of(int64_t power) {
  int shift = 0;
  while (int64_t{1} << shift < power) ++shift;
  return shift;
}

inline Grouping grouping(const GroupRows::Problem& p, const GroupRows::Args& a, const GroupGrid& grid) {
  return {.tokens = static_cast<int>(p.tokens),
          .slots = static_cast<int>(p.slots),
          .align_shift = log2_of(p.row_align),
          .experts = static_cast<int>(p.experts),
          .padded = static_cast<int>(padded_experts(p.experts)),
          .tile_shift = p.tile_rows > 0 ? log2_of(p.tile_rows) : -1,
          .rows = static_cast<int>(GroupRows::rows(p)),
          .tiles_max = static_cast<int>(GroupRows::tiles_max(p)),
          .grid = grid,
          .ids = a.ids.as<const int32_t>(),
          .row_count = a.row_count.as<int32_t>(),
          .row_begin = a.row_begin.as<int32_t>(),
          .order = a.order.as<int32_t>(),
          .position = a.position.as<int32_t>(),
          .tile_count = a.tile_count.as<int32_t>(),
          .tiles = a.tiles.as<int32_t>()};
}

// A CTA's dynamic shared memory.
struct GroupMemory {
  uint64_t* arrived;    // mbarrier: counts of all CTAs of the cluster have arrived
  uint32_t* mask;       // [padded experts, words]
  uint16_t* count;      // [CTAs per cluster, padded experts]
  int32_t* first;       // [experts] the row of the expert's first slot in this CTA
  int32_t* begin;       // [experts] the expert's first row
  int32_t* total;       // [experts]
  int32_t* tile_begin;  // [experts] the expert's first tile
  int32_t* slot;        // [tokens per CTA, slots] the expert, or -1
  int32_t* warp_sum;    // [2, 32]
  uint32_t* end;
};
inline __host__ __device__ GroupMemory group_memory(const Grouping& g, void* shared) {
  const int e = g.padded;
  GroupMemory m{};
  m.arrived = static_cast<uint64_t*>(shared);
  m.mask = reinterpret_cast<uint32_t*>(m.arrived + 2);
  m.count = reinterpret_cast<uint16_t*>(m.mask + e * g.grid.words);
  m.first = reinterpret_cast<int32_t*>(m.count + e * (g.grid.cluster > 1 ? g.grid.cluster : 0));
  m.begin = m.first + e;
  m.total = m.begin + e;
  m.tile_begin = m.total + e;
  m.warp_sum = m.tile_begin + e;
  m.slot = m.warp_sum + 64;
  m.end = reinterpret_cast<uint32_t*>(m.slot + g.grid.tokens_per_block * g.slots);
  return m;
}
inline size_t group_shared_bytes(const Grouping& g) {
  return reinterpret_cast<uintptr_t>(group_memory(g, nullptr).end);
}

__device__ __forceinline__ int first_token(const Grouping& g) {
  return static_cast<int>(blockIdx.x) * g.grid.tokens_per_block;
}
// The number of this CTA's tokens.
__device__ __forceinline__ int tokens_here(const Grouping& g) {
  return max(min(g.grid.tokens_per_block, g.tokens - first_token(g)), 0);
}

// Clears the mask and arrives at the cluster barrier, without access
// to global memory. A CTA barrier must follow before place().
__device__ __forceinline__ void begin_groups(const Grouping& g, const GroupMemory& m) {
  const int words = g.padded * g.grid.words;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) * 4; i < words; i += static_cast<int>(blockDim.x) * 4)
    *reinterpret_cast<uint4*>(m.mask + i) = uint4{0, 0, 0, 0};
  if (g.grid.cluster > 1) {
    if (threadIdx.x == 0) {
      barrier_init(m.arrived, 1);
      barrier_visible();
    }
    cluster_arrive();
  }
}

// Assigns slot `slot` of the CTA to expert `id`, or to no expert if `id` is not in [0, experts).
__device__ __forceinline__ void place(const Grouping& g, const GroupMemory& m, int slot, int id) {
  const bool grouped = id >= 0 && id < g.experts;
  m.slot[slot] = grouped ? id : -1;
  if (grouped) atomicOr(m.mask + id * g.grid.words + slot / 32, 1u << slot % 32);
}

__device__ __forceinline__ int rank_in_block(const Grouping& g, const GroupMemory& m, int id, int bit) {
  const uint32_t* mask = m.mask + id * g.grid.words;
  int rank = __popc(mask[bit / 32] & ((1u << bit % 32) - 1));
#pragma unroll 1
  for (int w = 0; w < bit / 32; ++w) rank += __popc(mask[w]);
  return rank;
}

// The number of this CTA's slots with expert e.
__device__ __forceinline__ uint32_t count_here(const Grouping& g, const GroupMemory& m, int e) {
  const uint32_t* mask = m.mask + e * g.grid.words;
  uint32_t count = __popc(mask[0]);
#pragma unroll 1
  for (int w = 1; w < g.grid.words; ++w) count += __popc(mask[w]);
  return count;
}

// Sends this CTA's counts to every CTA of the cluster. The warps divide the receivers; in each pass of 256 experts, a lane sends 8.
__device__ __forceinline__ void send_counts(const Grouping& g, const GroupMemory& m) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int warps = static_cast<int>(blockDim.x / 32);
  // If an expert has several mask words, one thread adds up its count. The
  // counts are staged in m.total, which is written only after a CTA barrier.
  auto* summed = reinterpret_cast<uint16_t*>(m.total);
  if (g.grid.words > 1) {
#pragma unroll 1
    for (int e = static_cast<int>(threadIdx.x); e < g.padded; e += static_cast<int>(blockDim.x))
      summed[e] = static_cast<uint16_t>(count_here(g, m, e));
    __syncthreads();
  }
  cluster_wait();
  if (threadIdx.x == 0)
    barrier_expect(m.arrived, static_cast<uint32_t>(g.grid.cluster * g.padded) * sizeof(uint16_t));
#pragma unroll 1
  for (int e = 8 * lane; e < g.padded; e += 256) {
    uint4 packed;
    if (g.grid.words > 1) {
      packed = *reinterpret_cast<const uint4*>(summed + e);
    } else {
      uint32_t count[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) count[j] = __popc(m.mask[e + j]);
      packed = uint4{count[0] | count[1] << 16, count[2] | count[3] << 16, count[4] | count[5] << 16,
                     count[6] | count[7] << 16};
    }
    const uint32_t at = shared_address(m.count + cluster_rank() * g.padded + e),
                   barrier = shared_address(m.arrived);
#pragma unroll 1
    for (int to = warp; to < g.grid.cluster; to += warps)
      store_remote(remote_address(at, to), packed, remote_address(barrier, to));
  }
}

struct ExpertRows {
  int total, before;  // slots of an expert; the number of them before the slots that the caller handles
};
struct SlotRank {
  int id, rank;  // expert, or -1; the number of its slots before this one, beyond ExpertRows::before
};

// Writes the rows of all experts to shared memory, then the outputs of `count` slots that begin at slot `first`.
// Outputs that belong to no slot are divided among `parts` parts; part 0 also writes the counts. Called by whole CTAs.
template <class Rows, class Slot>
__device__ __forceinline__ void assign_rows(const Grouping& g, const GroupMemory& m, int part, int parts,
                                            Rows rows_of, int first, int count, Slot slot_at) {
  const int tid = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int lane = tid % 32, warp = tid / 32;
  const bool tiled = g.tile_shift >= 0;
  const int align = (1 << g.align_shift) - 1, tile = tiled ? (1 << g.tile_shift) - 1 : 0;
  const SlotRank mine =
      tid < count ? slot_at(tid) : SlotRank{-1, 0};  // before the sums, so that its loads overlap them
  int rows_so_far = 0, tiles_so_far = 0;
#pragma unroll 1
  for (int base = 0; base < g.experts; base += threads) {
    const int e = base + tid;
    ExpertRows r{0, 0};
    if (e < g.experts) r = rows_of(e);
    const int rows = (r.total + align) & ~align, tiles = tiled ? (r.total + tile) >> g.tile_shift : 0;
    int rows_to = rows, tiles_to = tiles;
    add_lanes_before(lane, rows_to, tiles_to);
    if (base > 0) __syncthreads();
    if (lane == 31) m.warp_sum[warp] = rows_to, m.warp_sum[32 + warp] = tiles_to;
    __syncthreads();
    const int row_sum = lane < threads / 32 ? m.warp_sum[lane] : 0,
              tile_sum = lane < threads / 32 ? m.warp_sum[32 + lane] : 0;
    const int rows_before = __reduce_add_sync(0xffffffffu, lane < warp ? row_sum : 0);
    const int tiles_before = __reduce_add_sync(0xffffffffu, lane < warp ? tile_sum : 0);
    const int begin = rows_so_far + rows_before + rows_to - rows;
    if (e < g.experts) {
      m.begin[e] = begin, m.first[e] = begin + r.before, m.total[e] = r.total;
      m.tile_begin[e] = tiles_so_far + tiles_before + tiles_to - tiles;
    }
    rows_so_far += __reduce_add_sync(0xffffffffu, row_sum);
    tiles_so_far += __reduce_add_sync(0xffffffffu, tile_sum);
  }
  __syncthreads();
#pragma unroll 1
  for (int i = tid; i < count; i += threads) {
    const SlotRank s = i == tid ? mine : slot_at(i);
    int row = -1;
    if (s.id >= 0) {
      row = m.first[s.id] + s.rank;
      g.order[row] = first + i;
      const int within = row - m.begin[s.id];
      if (tiled && (within & tile) == 0)
        reinterpret_cast<int2*>(g.tiles)[m.tile_begin[s.id] + (within >> g.tile_shift)] = int2{s.id, row};
    }
    g.position[first + i] = row;
  }
  if (part == 0) {
#pragma unroll 1
    for (int e = tid; e < g.experts; e += threads) g.row_count[e] = m.total[e], g.row_begin[e] = m.begin[e];
    if (tid == 0) g.row_begin[g.experts] = rows_so_far;
    if (tid == 0 && tiled) *g.tile_count = tiles_so_far;
  }
  const uint32_t from = static_cast<uint32_t>(part) * threads + tid,
                 step = static_cast<uint32_t>(parts) * threads;
  const uint32_t aligned = align > 0 ? static_cast<uint32_t>(g.experts) << g.align_shift : 0;
#pragma unroll 1
  for (uint32_t i = from; i < aligned; i += step) {
    const int e = static_cast<int>(i >> g.align_shift), total = m.total[e];
    const int within = total + (static_cast<int>(i) & align);
    if (within < ((total + align) & ~align)) g.order[m.begin[e] + within] = -1;
  }
#pragma unroll 1
  for (uint32_t row = rows_so_far + from; row < static_cast<uint32_t>(g.rows); row += step) g.order[row] = -1;
#pragma unroll 1
  for (uint32_t i = tiles_so_far + from; i < static_cast<uint32_t>(g.tiles_max); i += step)
    reinterpret_cast<int2*>(g.tiles)[i] = int2{-1, -1};
}

// Converts ranks within clusters to rows. Every cluster's slots are split into `split` parts; this CTA handles parts `part`, part + parts, ...
__device__ __forceinline__ void finish_groups(const Grouping& g, const GroupMemory& m, int part, int parts,
                                              int split) {
  const int64_t slots = static_cast<int64_t>(g.tokens) * g.slots;
  const int64_t of_cluster = static_cast<int64_t>(g.grid.cluster) * g.grid.tokens_per_block * g.slots;
  const int64_t part_slots = (of_cluster + split - 1) / split;
  const int all = g.grid.clusters * split;
#pragma unroll 1
  for (int p = part; p < all; p += parts) {
    const int cluster = p / split;
    const int64_t start = cluster * of_cluster;
    const int64_t first = min(start + p % split * part_slots, slots),
                  end = min(min(first + part_slots, start + of_cluster), slots);
    if (p != part) __syncthreads();
    assign_rows(
        g, m, p, all,
        [&](int e) {
          ExpertRows r{0, 0};
#pragma unroll 16
          for (int c = 0; c < g.grid.clusters; ++c) {
            const int n = static_cast<int>(__ldcg(g.cluster_count + static_cast<int64_t>(c) * g.experts + e));
            r.total += n;
            r.before += c < cluster ? n : 0;
          }
          return r;
        },
        static_cast<int>(first), static_cast<int>(end - first),
        [&](int i) {
          const int rank = __ldcg(g.position + first + i);
          return SlotRank{rank < 0 ? -1 : __ldcg(g.ids + first + i), rank};
        });
  }
}

// Call it after all place(). Writes the rows of the CTA's slots; if there are several clusters, the ranks within the cluster instead.
__device__ __forceinline__ void end_groups(const Grouping& g, const GroupMemory& m) {
  const int blocks = g.grid.cluster, me = blocks > 1 ? static_cast<int>(cluster_rank()) : 0;
  __syncthreads();
  if (blocks > 1) send_counts(g, m);
  if (blocks > 1) barrier_wait(m.arrived, 0);
  const auto rows_of = [&](int e) {
    ExpertRows r{0, 0};
    if (blocks == 1) {
      r.total = static_cast<int>(count_here(g, m, e));
      return r;
    }
#pragma unroll 8
    for (int b = 0; b < blocks; ++b) {
      const int n = m.count[b * g.padded + e];
      r.total += n;
      r.before += b < me ? n : 0;
    }
    return r;
  };
  const int first = first_token(g) * g.slots, count = tokens_here(g) * g.slots;
  const auto slot_at = [&](int i) {
    const int id = m.slot[i];
    return id < 0 ? SlotRank{-1, 0} : SlotRank{id, rank_in_block(g, m, id, i)};
  };
  if (g.grid.clusters == 1) return assign_rows(g, m, me, blocks, rows_of, first, count, slot_at);
  // The number of CTAs per cluster is a power of two.
  const int cluster = static_cast<int>(blockIdx.x) >> (31 - __clz(blocks));
#pragma unroll 1
  for (int e = static_cast<int>(threadIdx.x); e < g.experts; e += static_cast<int>(blockDim.x)) {
    const ExpertRows r = rows_of(e);
    m.first[e] = r.before;
    if ((e & (blocks - 1)) == me)
      g.cluster_count[static_cast<int64_t>(cluster) * g.experts + e] = static_cast<uint32_t>(r.total);
  }
  __syncthreads();
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const SlotRank s = slot_at(i);
    g.position[first + i] = s.id < 0 ? -1 : m.first[s.id] + s.rank;
  }
}

}  // namespace sluice::cuda::tile
