// Router GEMM for few tokens: a tile of tokens x experts a cluster, the sum split over its blocks and their warps.
//
// A warp loads its part of the rows straight into operands of mma.sync (tile/mma.cuh): everything that it needs is in
// flight at once, weights first and before the wait for the kernel in front. Warps add up in shared memory, blocks
// push their sums into the shared memory of the block that owns the logits. One launch, no workspace.
//
// Wins    2 to about 128 tokens.
// Loses   one token, to gemv_sm90 (no cluster); more tokens, to kernels whose warps share what they load.
// Limits  see supports(). The order of a sum depends on hidden alone, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/router_gemm.h. docs/notes/cuda-router.md has what was measured and dropped.
#include "backends/cuda/card.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/router.h"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/mma.cuh"
#include "backends/cuda/tile/operand.cuh"
#include "ops/router_gemm.h"

namespace sluice::cuda {
namespace {

constexpr int kUnit = 32;   // numbers of a row that four lanes load at once
constexpr int kBlocks = 8;  // of a cluster
constexpr int kSlots = 8;   // sums of a block before they are added up, at most

// How a row is cut: into units, those into equal parts for the blocks, those into slots, each of them summed by one
// warp. It follows from hidden alone.
struct Split {
  int units, block_units, slots, slot_units;
  uint32_t zero;  // 0, which the compiler cannot know
};

// acc += x * w^T for one unit, by products of bf16 terms; those of 2^-24 of the largest and less are left out.
template <class X, class W, int kRows, int kColumns>
__device__ __forceinline__ void multiply(float (&acc)[(kRows + 8) / 16][kColumns / 8][4],
                                         const tile::Eight<X> (&x)[kRows / 8],
                                         const tile::Eight<W> (&w)[kColumns / 8]) {
  tile::Terms<X> xt[kRows / 8];
#pragma unroll
  for (int m = 0; m < kRows / 8; ++m) tile::to_terms(xt[m], x[m]);
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    tile::Terms<W> wt;
    tile::to_terms(wt, w[n]);
#pragma unroll
    for (int i = 0; i < tile::Terms<X>::kCount; ++i) {
#pragma unroll
      for (int j = 0; j < tile::Terms<W>::kCount; ++j) {
        if (i + j > 2) continue;
#pragma unroll
        for (int half = 0; half < 4; half += 2) {
          const uint32_t b[2] = {wt.term[j][half], wt.term[j][half + 1]};
#pragma unroll
          for (int m = 0; m < (kRows + 8) / 16; ++m) {
            const auto& low = xt[2 * m].term[i];
            uint32_t a[4] = {low[half], 0, low[half + 1], 0};
            if constexpr (kRows >= 16) {
              a[1] = xt[2 * m + 1].term[i][half];
              a[3] = xt[2 * m + 1].term[i][half + 1];
            }
            tile::mma(acc[m][n], a, b);
          }
        }
      }
    }
  }
}

// Grid: blocks of a cluster (hidden), tiles of experts, tiles of tokens. kRows tokens (8 or a multiple of 16) and
// kColumns experts a tile; kFlight units of a warp are in flight at once; kResident blocks fit an SM. kAnyRows: rows of
// x may start at any address.
//
// A logit's place in a tile is (pair, 0 or 1): pair = ((row / 8) * kColumns / 8 + column / 8) * 32 + lane, as the lanes
// of an mma hold them. Shared memory: sums of each slot [slots][pairs], then those of each block that this one owns
// [blocks][pairs / blocks].
template <class X, class W, int kRows, int kColumns, int kWarps, int kFlight, int kResident, bool kAnyRows>
__global__ void __launch_bounds__(32 * kWarps, kResident)
    splitk(const __grid_constant__ RouterParameters p, const __grid_constant__ Split split) {
  constexpr int kRowGroups = kRows / 8, kColumnGroups = kColumns / 8, kPairs = kRowGroups * kColumnGroups * 32;
  constexpr int kShare = kPairs / kBlocks, kThreads = 32 * kWarps;
  static_assert(kShare <= kThreads);
  extern __shared__ float2 sums[];
  __shared__ uint64_t received_all;
  const int rank = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int first_expert = blockIdx.y * kColumns, first_token = blockIdx.z * kRows;

  const int block_begin = rank * split.block_units, block_end = min(block_begin + split.block_units, split.units);
  const W* w[kColumnGroups];
  const X* x[kRowGroups];
#pragma unroll
  for (int n = 0; n < kColumnGroups; ++n)
    w[n] = static_cast<const W*>(p.w) + (min(first_expert + 8 * n + g, p.experts - 1) * p.hidden + 8 * c);
#pragma unroll
  for (int m = 0; m < kRowGroups; ++m)
    x[m] = static_cast<const X*>(p.x) + (min(first_token + 8 * m + g, p.tokens - 1) * p.x_stride + 8 * c);

  // Where this warp is: `at` units into the slot, the unit `begin` of the rows; this lane's numbers are those below
  // `left`, counted from there on.
  const int warp_slots = split.slots / kWarps;
  int slot = warp * warp_slots, at = 0, begin, left;
  tile::Eight<W> wv[kFlight][kColumnGroups];
  const auto load_w = [&] {
    const int slot_begin = block_begin + slot * split.slot_units;
    begin = slot_begin + at;
    left = min((min(slot_begin + split.slot_units, block_end) - begin) * kUnit, p.hidden - begin * kUnit - 8 * c);
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
#pragma unroll
      for (int n = 0; n < kColumnGroups; ++n)
        tile::load_weights(wv[i][n], w[n] + begin * kUnit + i * kUnit, i * kUnit < left);
    }
  };
  load_w();

  tile::release_next();
  if (threadIdx.x == 0) {
    tile::barrier_init(&received_all, 1);
    tile::barrier_visible();
    tile::barrier_expect(&received_all, kPairs * sizeof(float2));
  }
  tile::cluster_arrive();

  // The logits that this thread stores in the end, if any.
  const int pair = rank * kShare + threadIdx.x;
  const bool stores = threadIdx.x < kShare;
  const int expert = first_expert + pair / 32 % kColumnGroups * 8 + pair % 4 * 2;
  const int token = first_token + pair / 32 / kColumnGroups * 8 + pair % 32 / 4;
  const W* bias = static_cast<const W*>(p.bias) + expert;
  const uint32_t bias_even = tile::load_weight(bias, p.bias && stores && expert < p.experts);
  const uint32_t bias_odd = tile::load_weight(bias + 1, p.bias && stores && expert + 1 < p.experts);
  tile::wait_for_previous();

  float acc[(kRows + 8) / 16][kColumnGroups][4];
  for (;;) {
    tile::Eight<X> xv[kFlight][kRowGroups];
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
#pragma unroll
      for (int m = 0; m < kRowGroups; ++m)
        tile::load_inputs(xv[i][m], x[m] + begin * kUnit + i * kUnit, i * kUnit < left, !kAnyRows || p.x_wide);
    }
    // No sum starts before the last load is under way: this zero comes from them all. Else the compiler puts each load
    // next to its use, and they wait for each other.
    uint32_t any = 0;
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
#pragma unroll
      for (int m = 0; m < kRowGroups; ++m) any |= xv[i][m].word[0].x;
    }
    const float zero = __uint_as_float(any & split.zero);
#pragma unroll
    for (int m = 0; m < (kRows + 8) / 16; ++m) {
#pragma unroll
      for (int n = 0; n < kColumnGroups; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[m][n][i] = at == 0 ? zero : acc[m][n][i] + zero;
      }
    }
#pragma unroll
    for (int i = 0; i < kFlight; ++i) multiply<X, W, kRows, kColumns>(acc, xv[i], wv[i]);

    at += kFlight;
    if (at >= split.slot_units) {
#pragma unroll
      for (int m = 0; m < kRowGroups; ++m) {
#pragma unroll
        for (int n = 0; n < kColumnGroups; ++n) {
          const float(&d)[4] = acc[m / 2][n];
          sums[slot * kPairs + (m * kColumnGroups + n) * 32 + lane] =
              m % 2 == 0 ? make_float2(d[0], d[1]) : make_float2(d[2], d[3]);
        }
      }
      at = 0;
      if (++slot == (warp + 1) * warp_slots) break;
    }
    load_w();
  }

  float2* received = sums + split.slots * kPairs;
  tile::cluster_wait();
  __syncthreads();
#pragma unroll
  for (int first = 0; first < kPairs; first += kThreads) {
    const int i = first + threadIdx.x;
    if (kPairs % kThreads != 0 && i >= kPairs) break;
    float2 sum = sums[i];
#pragma unroll
    for (int j = 1; j < kSlots; ++j) {
      if (j == split.slots) break;
      const float2 more = sums[j * kPairs + i];
      sum.x += more.x;
      sum.y += more.y;
    }
    const int owner = i / kShare;
    tile::store_remote(tile::remote_address(tile::shared_address(&received[rank * kShare + i % kShare]), owner), sum,
                       tile::remote_address(tile::shared_address(&received_all), owner));
  }
  if (!stores) return;
  tile::barrier_wait(&received_all, 0);
  float2 total = {tile::weight_value<W>(bias_even), tile::weight_value<W>(bias_odd)};
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    const float2 more = received[j * kShare + threadIdx.x];
    total.x += more.x;
    total.y += more.y;
  }
  if (token < p.tokens) store_logits(p, token, expert, total);
}

struct Tile {
  int tokens, experts, warps, flight, resident;
  void (*kernel)(RouterParameters, Split);
};

template <int kRows, int kColumns, int kWarps, int kFlight, int kResident, class X = __nv_bfloat16,
          class W = __nv_bfloat16, bool kAnyRows = false>
constexpr Tile tile_of() {
  return {kRows,     kColumns, kWarps, kFlight,
          kResident, splitk<X, W, kRows, kColumns, kWarps, kFlight, kResident, kAnyRows>};
}

// bf16, rows of x on 16 bytes.
const Tile kTiles[] = {
    tile_of<8, 8, 4, 3, 4>(),   tile_of<8, 16, 4, 3, 4>(),  tile_of<8, 24, 4, 3, 4>(),  tile_of<8, 32, 4, 3, 4>(),
    tile_of<16, 8, 4, 3, 4>(),  tile_of<16, 16, 4, 3, 4>(), tile_of<16, 24, 4, 3, 4>(), tile_of<16, 32, 4, 3, 4>(),
    tile_of<32, 32, 4, 3, 3>(), tile_of<8, 8, 4, 4, 4>(),   tile_of<8, 16, 4, 4, 4>(),  tile_of<8, 24, 4, 4, 4>(),
    tile_of<8, 32, 4, 4, 3>(),  tile_of<16, 8, 4, 4, 4>(),  tile_of<16, 16, 4, 4, 4>(), tile_of<16, 24, 4, 4, 4>(),
    tile_of<16, 32, 4, 4, 3>(), tile_of<8, 8, 8, 4, 2>(),   tile_of<8, 16, 8, 4, 2>(),  tile_of<8, 24, 8, 4, 2>(),
    tile_of<8, 32, 8, 4, 2>(),  tile_of<16, 8, 8, 4, 2>(),  tile_of<16, 16, 8, 4, 2>(), tile_of<16, 24, 8, 4, 2>(),
};
// Everything else: f32 operands as sums of bf16, rows anywhere.
template <class X, class W>
constexpr Tile any_tile() {
  return tile_of<16, 16, 4, 2, 2, X, W, true>();
}

int parts(int64_t size, int64_t of) { return static_cast<int>((size + of - 1) / of); }

Split split_of(int64_t hidden) {
  constexpr int kFewUnits = 16;  // a block's, four slots of which are in flight in four warps
  Split s{.units = parts(hidden, kUnit), .block_units = 0, .slots = 0, .slot_units = 0, .zero = 0};
  s.block_units = parts(s.units, kBlocks);
  s.slots = s.block_units <= kFewUnits ? kSlots / 2 : kSlots;
  s.slot_units = parts(s.block_units, s.slots);
  return s;
}

// Fitted to an H200: the better of two tiles by it is, over 8 shapes and 1 to 256 tokens, within some percent of the
// best. Clusters of 8 do not fit everywhere on the chip: 15 where an SM takes one of its blocks.
double tile_us(const Tile& t, const Split& s, int64_t tokens, int64_t experts) {
  constexpr double kClusters = 15.4, kBaseUs = 1.9, kKilobyteUs = 0.0093, kLateShare = 1.5, kPassUs = 0.77;
  constexpr double kWaveUs = 1.1, kBlockUs = 0.155, kLogitUs = 0.068 / 1024;
  const double clusters = static_cast<double>(parts(tokens, t.tokens)) * parts(experts, t.experts);
  const double of_an_sm = std::max(1.0, clusters / kClusters), waves = std::ceil(clusters / (kClusters * t.resident));
  // Rows of x weigh more than rows of w, which come before the wait for the kernel in front.
  const double rows = kLateShare * static_cast<double>(std::min<int64_t>(t.tokens, tokens)) + t.experts;
  const double kilobytes = rows * s.block_units * kUnit * 2 / 1024;
  const double passes = static_cast<double>(s.slots) / t.warps * parts(s.slot_units, t.flight);
  return kBaseUs + of_an_sm * (kilobytes * kKilobyteUs + t.tokens * t.experts * kLogitUs) + (passes - 1) * kPassUs +
         (waves - 1) * kWaveUs + (of_an_sm - 1) * kBlockUs;
}

const Tile& tile_for(const Split& s, int64_t tokens, int64_t experts) {
  const Tile* best = nullptr;
  double least = 0;
  for (const Tile& t : kTiles) {
    if (t.warps > s.slots) continue;
    const double us = tile_us(t, s, tokens, experts);
    if (best && us >= least) continue;
    best = &t;
    least = us;
  }
  return *best;
}

Refusal supports(const RouterGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  need_multiple(r, "hidden", p.hidden, 8, "16-byte pieces of a row");
  r.need(p.hidden >= 128, "hidden >= 128 (shorter sums may miss their bound on tensor cores)", "hidden", p.hidden);
  r.need(p.tokens <= 512, "tokens <= 512 (every tile loads its rows anew)", "tokens", p.tokens);
  return r;
}

double cost_us(const RouterGemm::Problem& p, const DeviceInfo&) {
  const Split split = split_of(p.hidden);
  const double us = tile_us(tile_for(split, p.tokens, p.experts), split, p.tokens, p.experts);
  const double terms = (p.x == DType::kF32 ? 2.0 : 1.0) * (p.w == DType::kF32 ? 2.0 : 1.0);
  return 2.1 + (us - 1.9) * 1.4 * terms;
}

Status enqueue(const RouterGemm::Problem& p, const RouterGemm::Args& a, Workspace, Stream stream);

}  // namespace

extern const Candidate<RouterGemm> router_gemm_splitk_sm90 = {
    .name = "cuda.router_gemm.splitk_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RouterGemm>,
    .enqueue = enqueue,
    .batch_invariant = true,
    .alignment_bytes = 16,
};

namespace {

Status launch_splitk(const RouterParameters& p, const Tile& tile, const Split& split, Stream stream) {
  const Launch how{.grid = {kBlocks, static_cast<unsigned>(parts(p.experts, tile.experts)),
                            static_cast<unsigned>(parts(p.tokens, tile.tokens))},
                   .block = {static_cast<unsigned>(32 * tile.warps), 1, 1},
                   .shared_bytes = static_cast<size_t>(tile.tokens * tile.experts) * sizeof(float) *
                                   static_cast<size_t>(split.slots + 1),
                   .cluster = {kBlocks, 1, 1}};
  return launch(router_gemm_splitk_sm90.name, tile.kernel, how, stream, p, split);
}

Status enqueue(const RouterGemm::Problem& p, const RouterGemm::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  using B = __nv_bfloat16;
  const RouterParameters parameters = router_parameters(p, a);
  const Split split = split_of(p.hidden);
  const bool x_f32 = p.x == DType::kF32, w_f32 = p.w == DType::kF32;
  if (!x_f32 && !w_f32 && parameters.x_wide)
    return launch_splitk(parameters, tile_for(split, p.tokens, p.experts), split, stream);
  const Tile any = x_f32 ? (w_f32 ? any_tile<float, float>() : any_tile<float, B>())
                         : (w_f32 ? any_tile<B, float>() : any_tile<B, B>());
  return launch_splitk(parameters, any, split, stream);
}

}  // namespace

}  // namespace sluice::cuda
