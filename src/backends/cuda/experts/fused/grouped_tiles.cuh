// Both products for rows grouped by expert, in one launch of tiles (experts/tile/tiles.cuh): first all tiles
// of gate and up, then all tiles of down. CTAs take tiles by ticket in this order. So no CTA idles at the end
// of the first product, and weights of the second product are in flight while the last rows of h are written.
//
// A tile of down waits until all rows of h of its expert are written. For each expert a counter holds the row blocks that consumer warpgroups
// have written; the warps that load rows of h wait for it. Tickets of gate and up come first, so running CTAs own those tiles, and these
// tiles wait for no other tile. Hence the CTAs need not all be resident at once. The last warp that has no more rows to wait for resets the
// counters to zero.
//
// Threads copy rows of h in the same way as rows of tokens, so stages
// have the same layout and the mainloop is the same for both products.
#pragma once
#include "backends/cuda/experts/tile/tiles.cuh"
#include "backends/cuda/grid_words.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/grid_barrier.cuh"
#include "ops/fused/grouped_mlp.h"

namespace sluice::cuda {

namespace grouped {

// In Queue::grid_words: the ticket counter, the number of warps that called leave(), then each expert's count of written row blocks.
constexpr int kTickets = 0, kLeft = kTicketsApart, kWritten = 2 * kTicketsApart;
static_assert((kWritten + GroupedLaunch::kExpertsMax) * sizeof(uint32_t) <= kGridWordsBytes);

template <TileKernel kOf>
struct Tiles : ExpertTiles<Mxfp4Blocks, kOf> {
  // a tile is written to the ring with its `index`: 0 gate and up, 1 down
  static constexpr bool kKeepsIndex = true;
  static constexpr bool kBothProducts = true;
  static_assert(kOf.x == XSource::kThreads && kOf.ctas() == 1 &&
                GroupedLaunch::kExpertsMax <= ExpertTiles<Mxfp4Blocks, kOf>::kThreads);
};

struct Parameters {
  ExpertParameters product[2];
  uint32_t* words = nullptr;
};

template <class C>
constexpr TileShared shared_of(int experts) {
  return tile_shared<C>(expert_list_bytes(experts) + (experts + 1) * 4);
}

#ifdef __CUDACC__

template <class T>
__device__ __forceinline__ T pick(bool second, const T& a, const T& b) {
  return second ? b : a;
}

// The list of both products' tiles, for the warps that load weights and rows.
template <class C>
struct BothProducts {
  const Parameters& p;
  const TileSchedule<C>&first, &second;
  uint32_t ticket;  // the CTA's first ticket

  __device__ __forceinline__ int tiles() const { return first.all + second.all; }
  __device__ __forceinline__ uint32_t* tickets() const { return p.words + kTickets; }
  __device__ __forceinline__ int follows() const { return 0; }
  __device__ __forceinline__ int first_tile(const Tickets<true>& tickets) const {
    return tickets.tile_of(ticket);
  }
  // The parameters that differ between the products, selected without branches.
  __device__ __forceinline__ ExpertParameters of(bool down) const {
    const ExpertParameters &a = p.product[0], &b = p.product[1];
    ExpertParameters out;
    out.x = pick(down, a.x, b.x), out.x_stride = pick(down, a.x_stride, b.x_stride);
    out.w = pick(down, a.w, b.w), out.w_bytes = pick(down, a.w_bytes, b.w_bytes);
    out.w_scale = pick(down, a.w_scale, b.w_scale);
    out.scale_bytes = pick(down, a.scale_bytes, b.scale_bytes);
    out.row_blocks = pick(down, a.row_blocks, b.row_blocks),
    out.k_blocks = pick(down, a.k_blocks, b.k_blocks);
    out.width = pick(down, a.width, b.width), out.slots = pick(down, a.slots, 0);
    out.order = a.order, out.row_begin = a.row_begin, out.row_count = a.row_count, out.x_wide = 1;
    return out;
  }
  __device__ __forceinline__ ExpertParameters of(const ExpertTile& t) const { return of(t.index > 0); }
  __device__ __forceinline__ ExpertTile at(int index) const {
    const bool down = index >= first.all;
    TileSchedule<C> list;
    list.before = pick(down, first.before, second.before), list.expert = first.expert;
    list.listed = first.listed;
    list.cut_expert = pick(down, first.cut_expert, second.cut_expert);
    list.cut_m_tile = pick(down, first.cut_m_tile, second.cut_m_tile);
    list.tail_blocks = pick(down, first.tail_blocks, second.tail_blocks);
    ExpertTile t = list.at(of(down), index - (down ? first.all : 0));
    t.index = down;
    return t;
  }
  __device__ __forceinline__ void wait_for_rows(const ExpertTile& t) const {
    if (t.index == 0) return;
    const uint32_t* written = p.words + kWritten + t.expert;
    const uint32_t all = static_cast<uint32_t>(
        p.product[0].row_blocks * TileSchedule<C>::tiles_of(__ldg(p.product[0].row_count + t.expert)));
    if (threadIdx.x % 32 == 0)
      while (tile::read_written(written) != all) {
      }
    __syncwarp();
  }
};

// Converts a warpgroup's sums of one product to rows of y (h for gate and up, g for down).
template <int N, class C, bool kGated>
__device__ __forceinline__ void write_rows(const ExpertParameters& p, const ExpertTile& t,
                                           float (&d)[C::kBlocks][N / 2],
                                           const EpilogueRowsAhead<C::kBlocks, kGated>& ahead,
                                           int first_block, uint32_t staging, int group) {
  EpilogueRows<kGated> rows[C::kBlocks];
  ahead.get(rows, p, t.expert, first_block);
  epilogue_straight<N, C::kBlocks, kGated>(d, p, p.act, t, first_block, rows,
                                           StraightEpilogue<kGated>(staging, group));
}

// Multiplies one tile of either product and writes its rows. N >= t.rows.
template <int N, class C>
__device__ __forceinline__ void multiply_tile(const Parameters& p, const ExpertTile& t, TileRing<C>& ring) {
  const int group = uniform(static_cast<int>(threadIdx.x / 128)) - 1,
            first_block = t.first_block + group * C::kBlocks;
  const bool down = t.index > 0;
  const uint32_t values = ring.base + ring.at.epilogue + group * EpilogueRowsAhead<C::kBlocks, true>::kBytes;
  const EpilogueRowsAhead<C::kBlocks, true> up_ahead(values);
  const EpilogueRowsAhead<C::kBlocks, false> down_ahead(values);
  static_assert(C::kGroups * EpilogueRowsAhead<C::kBlocks, true>::kBytes == C::kEpilogueBytes);
  const auto tops = [&](const ExpertParameters& q) {
    return q.w_scale + t.expert * q.scale_bytes + q.top_begin;
  };
  if (down) {
    down_ahead.ask(p.product[1], t.expert, first_block, tops(p.product[1]));
  } else {
    up_ahead.ask(p.product[0], t.expert, first_block, tops(p.product[0]));
  }
  float d[C::kBlocks][N / 2];
  set_zero(d);
  ScalesOf<C> scales;
  const uint32_t last = C::Weights::template multiply<N>(
      d, pick(down, p.product[0].k_blocks, p.product[1].k_blocks), ring, scales);
  wait_for_sums(d);
  const uint32_t staging = staging_in_stage<C, true>(ring, last, group);
  if (down) {
    write_rows<N, C, false>(p.product[1], t, d, down_ahead, first_block, staging, group);
    ring.release(last);
    return;
  }
  write_rows<N, C, true>(p.product[0], t, d, up_ahead, first_block, staging, group);
  ring.release(last);
  tile::sync_threads<128>(1 + group);
  if (threadIdx.x % 128 == 0)
    tile::add_written(p.words + kWritten + t.expert,
                      static_cast<uint32_t>(min(C::kBlocks, t.end_block - first_block)));
}

template <int N, class C>
__device__ __forceinline__ void multiply_rows(const Parameters& p, const ExpertTile& t, TileRing<C>& ring) {
  if constexpr (N > C::kNMin)
    if (t.rows <= N - C::kStepN) return multiply_rows<N - C::kStepN, C>(p, t, ring);
  multiply_tile<N, C>(p, t, ring);
}

// Called by each warp that waits for rows of h, after its last wait. The
// last warp of the grid resets the counters: no warp waits for them anymore.
__device__ __forceinline__ void leave(const Parameters& p) {
  uint32_t left = 0;
  if (threadIdx.x % 32 == 0) left = tile::take_turn(p.words + kLeft);
  if (__shfl_sync(0xffffffffu, left, 0) != gridDim.x * kXWarps - 1) return;
  for (int e = static_cast<int>(threadIdx.x % 32); e < p.product[0].experts; e += 32)
    p.words[kWritten + e] = 0;
  if (threadIdx.x % 32 == 0) p.words[kLeft] = 0;
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    grouped_mlp_tiles(const __grid_constant__ Parameters p, const __grid_constant__ TileShared at) {
  extern __shared__ __align__(1024) uint8_t base[];
  if (tile::shared_address(base) % 1024 != 0) __trap();
  TileRing<C> ring{tile::shared_address(base), at, {}};
  ring.init(base);
  if (threadIdx.x < 32) tile::barrier_visible();
  // Uniform for the reason given in expert_gemm_tiles() (tile/tiles.cuh).
  const int warp = uniform(static_cast<int>(threadIdx.x / 32)), experts = p.product[0].experts;
  auto* before = reinterpret_cast<int32_t*>(base + at.before);
  auto* listed = reinterpret_cast<uint16_t*>(before + 2 * (experts + 1));
  static_assert(C::kStageBytes - C::kWeights >= kExpertListScratchBytes<C::kThreads>);
  auto* scratch = reinterpret_cast<int32_t*>(base + C::kWeights);
  TileSchedule<C> first, second;
  uint32_t ticket = 0;
  // The list is built twice. The first time is before the wait, with one row per expert, only to bring
  // about 500 instructions into the instruction cache, which would otherwise miss after the wait.
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    const int e = static_cast<int>(threadIdx.x);
    int rows = e < experts ? 1 : 0;
    if (round > 0) {
      tile::wait_for_previous();
      if (warp == 0) ticket = Tickets<true>{p.words + kTickets, 0}.take();
      if (e < experts) rows = p.product[0].row_count[e];
    }
    first = TileSchedule<C>{before, listed};
    second = TileSchedule<C>{before + experts + 1, listed};
    const typename TileSchedule<C>::Counted counted = first.count(p.product[0], rows, scratch);
    first.lay(p.product[0], counted, 0, scratch);  // cuts no tiles, because cut_for is 0
    second.listed = first.listed;
    second.lay(p.product[1], counted, first.all, scratch);
    __syncthreads();
  }
  const BothProducts<C> work{p, first, second, ticket};
  if (warp < 4) {
    tile::keep_registers<C::kProducerRegisters>();
    if (warp == 0) {
      fetch_weights(work, ring, warp);
    } else {
      fetch_rows(work, ring);
      leave(p);
    }
  } else {
    tile::release_next();
    tile::take_registers<C::kConsumerRegisters>();
    const int group = warp / 4 - 1;
#pragma unroll 1
    for (int count = 0;; ++count) {
      const ExpertTile t = ring.wait_tile(count);
      if (ring.ends(t)) break;
      if (t.first_block + group * C::kBlocks < t.end_block) {
        multiply_rows<C::kTileN, C>(p, t, ring);
      } else {
        ring.skip(pick(t.index > 0, p.product[0].k_blocks, p.product[1].k_blocks));
      }
    }
  }
}

template <int kRow>
Status launch_tiles(std::string_view name, const GroupedMlp::Problem& p, const GroupedMlp::Args& a,
                    Workspace w, const GroupedLaunch& told, Stream stream) {
  using C = Tiles<kMxfp4Tiles[kRow]>;
  const Queue& queue = queue_of(stream);
  const Tensor h = make_tensor(w.data, DType::kBF16, {GroupedMlp::rows(p), p.mlp.intermediate}, stream.where);
  Parameters q{.product = {expert_parameters(GroupedMlp::up(p), GroupedMlp::up(p, a, h)),
                           expert_parameters(GroupedMlp::down(p), GroupedMlp::down(a, h))},
               .words = queue.grid_words};
  q.product[0].expert_order = told.order;
  q.product[1].cut_for = 1.f / static_cast<float>(queue.sms);
  const TileShared at = shared_of<C>(static_cast<int>(p.mlp.experts));
  const Launch how{.grid = {static_cast<unsigned>(queue.sms), 1, 1},
                   .block = {C::kThreads, 1, 1},
                   .shared_bytes = static_cast<size_t>(at.bytes)};
  return launch(name, grouped_mlp_tiles<C>, how, stream, q, at);
}

#endif

}  // namespace grouped

}  // namespace sluice::cuda
