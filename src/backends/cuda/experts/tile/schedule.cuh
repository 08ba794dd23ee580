// The list of tiles of tiles.cuh.
#pragma once
#include <algorithm>

#include "backends/cuda/experts/parameters.cuh"

namespace sluice::cuda {

// Bytes of shared memory of a TileSchedule; below, of the scratch memory that kThreads threads need to build it.
constexpr int expert_list_bytes(int experts) { return (experts + 1) * 4 + (experts + 1) / 2 * 4; }
template <int kThreads>
constexpr int kExpertListScratchBytes = kThreads / 32 * 16 + 16;

#ifdef __CUDACC__

// The tiles of all experts that a launch computes, divided as in PlainSchedule; the two halves of a CTA pair's tile
// count as one tile. The tail is the tiles after the last full round of the grid. It is cut into tiles with fewer
// row blocks (those of one or two of the three warpgroups, which take about half or three quarters of a whole tile's
// time) if the cut tiles still fit one round. Two tiles make three cut tiles of two warpgroups, so even a tail of
// two thirds of a round gets a quarter of a round shorter. bf16 tiles are not cut, because that saved no time.
template <class C>
struct TileSchedule {
  // In shared memory. before: for the i-th listed expert, the number of tiles before it (cut tiles
  // included), and the total at the end, [experts + 1]. expert: the indices of the listed experts.
  int32_t* before = nullptr;
  uint16_t* expert = nullptr;
  int listed = 0, all = 0;  // experts in the list; tiles, including cut tiles
  // Where the cut tiles begin: experts after the cut_expert-th, and in that expert itself all
  // but the first cut_m_tile tiles along the weight rows, have tiles of tail_blocks row blocks.
  int cut_expert = INT32_MAX, cut_m_tile = 0, tail_blocks = C::kTileBlocks;

  static __device__ __forceinline__ int tiles_of(int rows) { return ceil_div(rows, C::kRowsMax); }
  // The class of the TMA box height that an expert's tiles need; 0 is the highest. If there are more heights, neighbors share a class.
  static constexpr int kClasses = std::min(C::kHeights, 4);  // a class has 16 bits of a 64-bit word
  static __device__ __forceinline__ int height_class(int rows) {
    const int units = ceil_div(ceil_div(rows, C::kStepN), tiles_of(rows));
    const int width = (C::kSharesWeights ? ceil_div(units, 2) : units) * C::kStepN;
    const int height = max(0, min(C::kHeights - 1, (C::kTileN - width) / C::kStepN));
    if constexpr (C::kHeights > kClasses) return height * kClasses / C::kHeights;
    return height;
  }

  // Builds the list. Called by all threads of the CTA. sums: shared memory, kExpertListScratchBytes, aligned to 16.
  __device__ __forceinline__ void make(const ExpertParameters& p, int32_t* sums) {
    if (p.expert_order == ExpertOrder::kLong) {
      make_long(p, sums);
      return;
    }
    const int e = static_cast<int>(threadIdx.x);
    lay(p, count(p, e < p.experts ? p.row_count[e] : 0, sums), 0, sums);
    __syncthreads();
  }

  // What count() finds for a thread's expert: its position in the list, and three counts of
  // tiles per row block of weights: before the expert, of the expert, and of all experts.
  struct Counted {
    int at, first, own, columns;
    bool mine;  // this launch computes the expert
  };
  // First step of make(): orders the experts. Thread e passes the rows of expert e, or 0 past the last expert.
  __device__ __forceinline__ Counted count(const ExpertParameters& p, int rows, int32_t* sums) {
    const uint32_t scratch = tile::shared_address(sums);
    const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
    const bool mine = serves(p, rows);
    const int own = mine ? tiles_of(rows) : 0;
    const int height = !mine ? 4 : p.expert_order == ExpertOrder::kByWidth ? height_class(rows) : 0;
    // For each height class, the experts before this one and their tiles per row block of weights: first within
    // the warp, then within the CTA. Loops over the sums of warps would take as long as everything else.
    int at = 0;
    uint64_t experts = 0, tiles = static_cast<uint64_t>(own) << (16 * (height % 4));
#pragma unroll
    for (int h = 0; h < kClasses; ++h) {
      const unsigned these = __ballot_sync(0xffffffffu, height == h);
      if (height == h) at = __popc(these & ((1u << lane) - 1));
      experts |= static_cast<uint64_t>(__popc(these)) << (16 * h);
    }
    tile::add_lanes_before(lane, tiles);
    if (lane == 31)
      tile::store_shared(scratch + warp * 16,
                         make_uint4(static_cast<uint32_t>(experts), static_cast<uint32_t>(experts >> 32),
                                    static_cast<uint32_t>(tiles), static_cast<uint32_t>(tiles >> 32)));
    __syncthreads();
    constexpr int kWarps = C::kThreads / 32;
    const uint4 of = lane < kWarps ? tile::load_shared(scratch + lane * 16) : make_uint4(0, 0, 0, 0);
    uint64_t warps_experts = of.x | static_cast<uint64_t>(of.y) << 32,
             warps_tiles = of.z | static_cast<uint64_t>(of.w) << 32;
    tile::add_lanes_before<kWarps>(lane, warps_experts, warps_tiles);
    const uint64_t all_experts = __shfl_sync(0xffffffffu, warps_experts, kWarps - 1),
                   all_tiles = __shfl_sync(0xffffffffu, warps_tiles, kWarps - 1);
    const uint64_t experts_before = __shfl_sync(0xffffffffu, warps_experts, max(warp - 1, 0)),
                   tiles_before = __shfl_sync(0xffffffffu, warps_tiles, max(warp - 1, 0));
    int first = static_cast<int>(tiles >> (16 * (height % 4)) & 0xffff) - own, columns = 0;
#pragma unroll
    for (int h = 0; h < kClasses; ++h) {
      if (height == h && warp > 0)
        at += static_cast<int>(experts_before >> (16 * h) & 0xffff),
            first += static_cast<int>(tiles_before >> (16 * h) & 0xffff);
      if (height == h) at += listed, first += columns;
      listed += static_cast<int>(all_experts >> (16 * h) & 0xffff);
      columns += static_cast<int>(all_tiles >> (16 * h) & 0xffff);
    }
    listed = uniform(listed), columns = uniform(columns);
    if (mine) expert[at] = static_cast<uint16_t>(tid);
    return {at, first, own, columns, mine};
  }
  // Second step: counts tiles over all weight rows, and cuts the tail, in a launch that computes `ahead` other
  // tiles first. The caller needs a CTA barrier before the list is read, and before another call that cuts.
  __device__ __forceinline__ void lay(const ExpertParameters& p, const Counted& counted, int ahead,
                                      int32_t* sums) {
    constexpr int kWarps = C::kThreads / 32;
    const uint32_t scratch = tile::shared_address(sums);
    const auto [at, first, own, columns, mine] = counted;
    const int m_tiles = ceil_div(p.row_blocks, C::kTileBlocks), grid = static_cast<int>(gridDim.x) / C::kCtas;
    all = columns * m_tiles;
    const int together = ahead + all;
    const int tail_tiles =
        max(0, min(all, together - __float2int_rd(__int2float_rn(together) * p.cut_for) * grid));
    if (C::kCuts > 1) {
      // With a small tile_n memory is the bottleneck. In the last round, idle SMs load weights
      // of the next product, so cut tiles that fill more than half a round save nothing. If the
      // launch computes both products, no other product follows, and cutting is always worth it.
      constexpr int kOfGroup = C::kTileBlocks / C::kCuts,
                    kTwoThirds = C::kTileN <= 32 && !C::kBothProducts ? 4 : 3;
      if (p.cut_for > 0 && tail_tiles > 0)
        tail_blocks = 3 * tail_tiles <= grid                ? kOfGroup
                      : kTwoThirds * tail_tiles <= 2 * grid ? 2 * kOfGroup
                                                            : C::kTileBlocks;
    }
    int tail_m_tiles = m_tiles, moved = 0;
    if (tail_blocks < C::kTileBlocks) {
      const int whole = all - tail_tiles;
      tail_m_tiles = ceil_div(p.row_blocks, tail_blocks);
      if (whole >= first * m_tiles && whole < (first + own) * m_tiles) {
        const int m_tile = (whole - first * m_tiles) / own;
        const int rest = own * ceil_div(p.row_blocks - m_tile * C::kTileBlocks, tail_blocks);
        const int end = first * m_tiles + m_tile * own + rest;
        tile::store_shared(scratch + kWarps * 16,
                           make_uint4(at, m_tile, end - (first + own) * tail_m_tiles, 0));
      }
      __syncthreads();
      const uint4 cut = tile::load_shared(scratch + kWarps * 16);
      cut_expert = uniform(static_cast<int>(cut.x)), cut_m_tile = uniform(static_cast<int>(cut.y));
      moved = uniform(static_cast<int>(cut.z));
      all = columns * tail_m_tiles + moved;
    }
    if (mine) before[at] = at <= cut_expert ? first * m_tiles : first * tail_m_tiles + moved;
    if (threadIdx.x == 0) before[listed] = all;
  }

  // The tile at `index` < all, whole or cut. Called by whole warps. No copy is issued
  // while a warp looks up a tile, so this code avoids divisions and has no branches.
  __device__ __forceinline__ ExpertTile at(const ExpertParameters& p, int index) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    int low = 0, far = listed;  // before[low] <= index < before[low + far]
#pragma unroll 1
    while (far > 1) {
      const int step = ceil_div(far, 32), i = lane * step;
      const bool is_before = i < far && before[low + i] <= index;
      const int more = (__popc(__ballot_sync(0xffffffffu, is_before)) - 1) * step;
      low += more, far = min(step, far - more);
    }
    const int e = expert[low], rows = __ldg(p.row_count + e), begin = __ldg(p.row_begin + e);
    const int within = index - before[low], tiles = tiles_of(rows), units = ceil_div(rows, C::kStepN),
              m_tile = within / tiles, tile = within - m_tile * tiles;
    // the first `more` tiles have one unit more than the others
    const int each = units / tiles, more = units - each * tiles;
    const int first = (tile * each + min(tile, more)) * C::kStepN;
    const int limit = low < cut_expert   ? INT32_MAX
                      : low > cut_expert ? 0
                                         : cut_m_tile,
              whole = min(m_tile, limit);
    const int block = whole * C::kTileBlocks + (m_tile - whole) * tail_blocks;
    return {uniform(e), uniform(block), uniform(begin + first),
            uniform(min((each + (tile < more)) * C::kStepN, rows - first)),
            uniform(min(block + (m_tile < limit ? C::kTileBlocks : tail_blocks), p.row_blocks))};
  }

 private:
  // For more experts than the CTA has threads, or more tiles than 16 bits can count: lists tiles in the order of expert ids and cuts none.
  __device__ __forceinline__ void make_long(const ExpertParameters& p, int32_t* sums) {
    const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
    const int m_tiles = ceil_div(p.row_blocks, C::kTileBlocks);
#pragma unroll 1
    for (int base = 0; base < p.experts; base += C::kThreads) {
      const int e = base + tid, rows = e < p.experts ? p.row_count[e] : 0;
      const int own = serves(p, rows) ? tiles_of(rows) * m_tiles : 0;
      int up_to = own;
      tile::add_lanes_before(lane, up_to);
      if (lane == 31) sums[warp] = up_to;
      __syncthreads();
      int in_round = 0;
#pragma unroll 1
      for (int w = 0; w < C::kThreads / 32; ++w) {
        const int of = sums[w];
        if (w < warp) up_to += of;
        in_round += of;
      }
      if (e < p.experts) before[e] = all + up_to - own, expert[e] = static_cast<uint16_t>(e);
      all = uniform(all + in_round);
      __syncthreads();
    }
    listed = p.experts;
    if (tid == 0) before[listed] = all;
    __syncthreads();
  }
};

#endif

}  // namespace sluice::cuda
