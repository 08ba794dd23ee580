// Router GEMM for few tokens: a cluster computes one tile of tokens x experts; k is split over its CTAs and their warps.
//
// A warp loads its part of the rows from global memory directly into operands of mma.sync (tile/mma.cuh). It issues all loads
// at once, loads of weights first and before the wait for the previous launch. The warps of a CTA add up their sums in shared
// memory. Then every CTA stores its sums to the shared memory of the CTA that writes those logits. One launch, no workspace.
//
// Wins    4 to 192 tokens of 128 experts, 8 to 512 of 32, 2 to 96 of 4096 x 256, 4 to 32 of the larger routers (router_candidates.csv,
//         plain launches): 2.4 us against 4.1 us of tile_sm90 for 8 tokens of 2880 x 128.
// Loses   to gemv_sm90 (no cluster) for one token, by up to 0.7 us with bf16 weights; for more tokens to kernels whose warps share their
//         loads: here every tile loads its rows again, and an SM reads only 40 to 60 bytes per clock.
// Limits  see supports() below. The order of a sum depends only on hidden, so the kernel is batch-invariant.
// Source  original; the contract is ops/router_gemm.h. docs/lab/cuda-router.md lists the measured and rejected variants.
#include "backends/cuda/card.h"
#include "backends/cuda/measured_cost.h"
#include "ops/router_gemm.h"

namespace sluice::cuda {
namespace {

constexpr int kUnit = 32;                          // elements of a row that four lanes load together
constexpr int kBlocks = 8;                         // CTAs per cluster
constexpr int kWarps = 4, kThreads = 32 * kWarps;  // per CTA

// The split of k, in units: first equally among the CTAs of the cluster, then among the warps of a CTA.
struct Split {
  int units, block_units, warp_units;
  uint32_t zero;  // always 0, but unknown to the compiler
};

// Tokens and experts per cluster; units that a warp loads at once; CTAs per SM.
struct Tile {
  int tokens, experts, flight, resident;
};
// For f32 operands (which are split into bf16 terms) and for unaligned rows.
constexpr Tile kAnyTile = {16, 16, 2, 2};

int parts(int64_t size, int64_t of) { return static_cast<int>((size + of - 1) / of); }

Split split_of(int64_t hidden) {
  Split s{.units = parts(hidden, kUnit), .block_units = 0, .warp_units = 0, .zero = 0};
  s.block_units = parts(s.units, kBlocks);
  s.warp_units = parts(s.block_units, kWarps);
  return s;
}

// Fitted to an H200, over 8 shapes and 1 to 256 tokens: the tile of least cost is within a few percent of the fastest.
// kClusters: with one CTA per SM only 15 clusters of 8 are resident, because a cluster must fit into one GPC.
double tile_us(const Tile& t, const Split& s, int64_t tokens, int64_t experts) {
  constexpr double kClusters = 15.4, kBaseUs = 1.9, kKilobyteUs = 0.0093, kPassUs = 0.77;
  constexpr double kWaveUs = 1.1, kBlockUs = 0.155, kLogitUs = 0.068 / 1024;
  // Rows of x cost more than rows of w if launches are dependent, because they are loaded
  // only after the wait for the previous launch. Many rows of x per CTA cost extra.
  constexpr double kLateShare = 1.5, kTallUs = 0.45;
  constexpr int kTallTokens = 32;
  const double clusters = static_cast<double>(parts(tokens, t.tokens)) * parts(experts, t.experts);
  const double of_an_sm = std::max(1.0, clusters / kClusters),
               waves = std::ceil(clusters / (kClusters * t.resident));
  const double rows = kLateShare * static_cast<double>(std::min<int64_t>(t.tokens, tokens)) + t.experts;
  const double kilobytes = rows * s.block_units * kUnit * 2 / 1024;
  const double passes = parts(s.warp_units, t.flight);
  return kBaseUs + of_an_sm * (kilobytes * kKilobyteUs + t.tokens * t.experts * kLogitUs) +
         (passes - 1) * kPassUs + (waves - 1) * kWaveUs + (of_an_sm - 1) * kBlockUs +
         (t.tokens >= kTallTokens ? kTallUs : 0);
}

Refusal supports(const RouterGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  need_multiple(r, "hidden", p.hidden, 8, "16-byte chunks of a row");
  r.need(p.hidden >= 128, "hidden >= 128 (shorter sums may miss their bound on tensor cores)", "hidden",
         p.hidden);
  r.need(p.tokens <= 512, "tokens <= 512 (every tile loads its rows again)", "tokens", p.tokens);
  return r;
}

// bf16 operands: measured times. f32 operands: tile_us() of kAnyTile, times a factor for the products of the bf16 terms,
// plus the time to load the weights from memory. On an H200 most of 120 measurements up to 128 tokens are within 15%.
double cost_us(const RouterGemm::Problem& p, const DeviceInfo& d) {
  if (p.x == DType::kBF16 && p.w == DType::kBF16) return measured_us("cuda.router_gemm.splitk_sm90", p, d);
  const Split split = split_of(p.hidden);
  const double weights = static_cast<double>(bytes_of(p.w, p.experts * p.hidden)) / d.mem_bytes_per_us;
  const double us = tile_us(kAnyTile, split, p.tokens, p.experts);
  return weights + 0.2 + (p.x == DType::kF32 ? 1.75 : 1.22) * us;
}

struct Launcher {
  static Status enqueue(const RouterGemm::Problem&, const RouterGemm::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<RouterGemm> router_gemm_splitk_sm90 = {
    .name = "cuda.router_gemm.splitk_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RouterGemm>,
    .enqueue = enqueue_of<RouterGemm, Launcher>(),
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/router.h"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/operand_products.cuh"
#include "backends/cuda/tile/split_sum.cuh"

namespace sluice::cuda {
namespace {

// Grid: CTAs of a cluster (splits of k), tiles of experts, tiles of tokens. A tile has kRows tokens (8 or a
// multiple of 16) and kColumns experts. A warp loads kFlight units at once. kOnce: no warp has more units than
// that; the code is then short, which matters because a launch executes it once and fetching its instructions
// is part of the time. kResident: CTAs that fit on an SM. kAnyRows: rows of x may start at any address.
//
// Logits are handled in pairs of neighboring experts, in the order in which the lanes of an mma hold them: pair =
// ((row / 8) * kColumns / 8 + column / 8) * 32 + lane. Shared memory: the partial sums of each warp, [warps][pairs];
// then the partial sums that all CTAs send for the pairs that this CTA writes, [CTAs][pairs / CTAs].
template <class X_, class W_, int kTileRows, int kTileColumns, int kUnitsAtOnce, bool kOneFlight,
          bool kUnaligned>
struct Shape {
  using X = X_;
  using W = W_;
  static constexpr int kRows = kTileRows, kColumns = kTileColumns, kFlight = kUnitsAtOnce;
  static constexpr bool kOnce = kOneFlight, kAnyRows = kUnaligned;
  static constexpr int kRowGroups = kRows / 8, kColumnGroups = kColumns / 8,
                       kPairs = kRowGroups * kColumnGroups * 32, kShare = kPairs / kBlocks;
  static_assert(kShare <= kThreads);
  using Sums = float[(kRows + 8) / 16][kColumnGroups][4];
};

// The position of a thread.
struct Place {
  int rank, warp, lane, first_expert, first_token;
};

// A warp's part of the rows of a tile. The loads of kFlight units are all issued before the first of them is used.
template <class C>
struct Operands {
  using X = typename C::X;
  using W = typename C::W;
  const W* w[C::kColumnGroups];
  const X* x[C::kRowGroups];
  int left;  // elements from this lane's first to the end of the warp's part
  tile::Eight<W> wv[C::kFlight][C::kColumnGroups];

  __device__ __forceinline__ Operands(const RouterParameters& p, const Split& split, const Place& at) {
    const int g = at.lane / 4, c = at.lane % 4;
    const int begin = at.rank * split.block_units + at.warp * split.warp_units;
    const int end = min(begin + split.warp_units, min((at.rank + 1) * split.block_units, split.units));
    const int first = begin * kUnit + 8 * c;  // this lane's first element in a row
#pragma unroll
    for (int n = 0; n < C::kColumnGroups; ++n)
      w[n] =
          static_cast<const W*>(p.w) + (min(at.first_expert + 8 * n + g, p.experts - 1) * p.hidden + first);
#pragma unroll
    for (int m = 0; m < C::kRowGroups; ++m)
      x[m] =
          static_cast<const X*>(p.x) + (min(at.first_token + 8 * m + g, p.tokens - 1) * p.x_stride + first);
    left = min((end - begin) * kUnit, p.hidden - first);
    load_w();
  }
  __device__ __forceinline__ void load_w() {
#pragma unroll
    for (int i = 0; i < C::kFlight; ++i) {
#pragma unroll
      for (int n = 0; n < C::kColumnGroups; ++n)
        tile::load_weights(wv[i][n], w[n] + i * kUnit, i * kUnit < left);
    }
  }
  __device__ __forceinline__ void load_x(tile::Eight<X> (&xv)[C::kFlight][C::kRowGroups], bool wide) const {
#pragma unroll
    for (int i = 0; i < C::kFlight; ++i) {
#pragma unroll
      for (int m = 0; m < C::kRowGroups; ++m)
        tile::load_inputs(xv[i][m], x[m] + i * kUnit, i * kUnit < left, !C::kAnyRows || wide);
    }
  }
  // Advances to the next kFlight units.
  __device__ __forceinline__ void step() {
    left -= C::kFlight * kUnit;
#pragma unroll
    for (int n = 0; n < C::kColumnGroups; ++n) w[n] += C::kFlight * kUnit;
#pragma unroll
    for (int m = 0; m < C::kRowGroups; ++m) x[m] += C::kFlight * kUnit;
    load_w();
  }
};

// Computes a warp's sums over its units.
template <class C>
__device__ __forceinline__ void multiply(typename C::Sums& acc, Operands<C>& of, const RouterParameters& p,
                                         const Split& split) {
  for (int unit = 0;;) {
    tile::Eight<typename C::X> xv[C::kFlight][C::kRowGroups];
    of.load_x(xv, p.x_wide);
    // This zero depends on all loads, so no sum starts before the last load has been issued.
    // Without it the compiler moves each load next to its use, which serializes the loads.
    uint32_t any = 0;
#pragma unroll
    for (int i = 0; i < C::kFlight; ++i) {
#pragma unroll
      for (int m = 0; m < C::kRowGroups; ++m) any |= xv[i][m].word[0].x;
    }
    const float zero = __uint_as_float(any & split.zero);
#pragma unroll
    for (int m = 0; m < (C::kRows + 8) / 16; ++m) {
#pragma unroll
      for (int n = 0; n < C::kColumnGroups; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[m][n][i] = unit == 0 ? zero : acc[m][n][i] + zero;
      }
    }
#pragma unroll
    for (int i = 0; i < C::kFlight; ++i)
      tile::multiply_terms<typename C::X, typename C::W, C::kRows, C::kColumns>(acc, xv[i], of.wv[i]);

    unit += C::kFlight;
    if (C::kOnce || unit >= split.warp_units) break;  // all warps agree
    of.step();
  }
}

// Adds up the sums of the CTA's warps, and stores each pair to the CTA that writes it. sums: shared memory, [warps][pairs].
template <class C>
__device__ __forceinline__ void exchange(const typename C::Sums& acc, float2* sums,
                                         const tile::SplitInbox& inbox, const Place& at) {
  constexpr int kPairs = C::kPairs, kShare = C::kShare;
#pragma unroll
  for (int m = 0; m < C::kRowGroups; ++m) {
#pragma unroll
    for (int n = 0; n < C::kColumnGroups; ++n) {
      const float(&d)[4] = acc[m / 2][n];
      sums[at.warp * kPairs + (m * C::kColumnGroups + n) * 32 + at.lane] =
          m % 2 == 0 ? make_float2(d[0], d[1]) : make_float2(d[2], d[3]);
    }
  }
  tile::cluster_wait();
  __syncthreads();
  if (threadIdx.x == 0) inbox.expect(kPairs * sizeof(float2));
#pragma unroll
  for (int from = 0; from < kPairs; from += kThreads) {
    const int i = from + threadIdx.x;
    if (kPairs % kThreads != 0 && i >= kPairs) break;
    float2 sum = sums[i];
#pragma unroll
    for (int j = 1; j < kWarps; ++j) tile::add_to(sum, sums[j * kPairs + i]);
    inbox.of(i / kShare).store((at.rank * kShare + i % kShare) * sizeof(float2), sum);
  }
}

// The pair of logits that a thread writes, if it writes any.
template <class C>
struct Logits {
  using W = typename C::W;
  int expert, token;
  uint32_t bias_even, bias_odd;

  static __device__ __forceinline__ bool any() { return threadIdx.x < C::kShare; }
  // Loads the biases of the two logits.
  __device__ __forceinline__ Logits(const RouterParameters& p, const Place& at) {
    const int pair = at.rank * C::kShare + threadIdx.x;
    expert = at.first_expert + pair / 32 % C::kColumnGroups * 8 + pair % 4 * 2;
    token = at.first_token + pair / 32 / C::kColumnGroups * 8 + pair % 32 / 4;
    const W* bias = static_cast<const W*>(p.bias) + expert;
    bias_even = tile::load_weight(bias, p.bias && any() && expert < p.experts);
    bias_odd = tile::load_weight(bias + 1, p.bias && any() && expert + 1 < p.experts);
  }
  // Called once the sums of all CTAs have arrived: adds them up in order.
  __device__ __forceinline__ void write(const RouterParameters& p, const float2* received) const {
    float2 total = {tile::weight_value<W>(bias_even), tile::weight_value<W>(bias_odd)};
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) tile::add_to(total, received[j * C::kShare + threadIdx.x]);
    if (token < p.tokens) store_logits(p, token, expert, total);
  }
};

template <class C, int kResident>
__global__ void __launch_bounds__(kThreads, kResident)
    splitk(const __grid_constant__ RouterParameters p, const __grid_constant__ Split split) {
  extern __shared__ float2 sums[];
  __shared__ uint64_t received_all;
  float2* received = sums + kWarps * C::kPairs;
  const tile::SplitInbox inbox{tile::shared_address(received), tile::shared_address(&received_all)};
  const Place at = {static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x / 32),
                    static_cast<int>(threadIdx.x % 32), static_cast<int>(blockIdx.y) * C::kColumns,
                    static_cast<int>(blockIdx.z) * C::kRows};
  Operands<C> operands(p, split, at);
  tile::release_next();
  if (threadIdx.x == 0) {
    tile::barrier_init(&received_all, 1);
    tile::barrier_visible();
  }
  tile::cluster_arrive();
  const Logits<C> mine(p, at);
  tile::wait_for_previous();

  typename C::Sums acc;
  multiply(acc, operands, p, split);
  exchange<C>(acc, sums, inbox, at);
  if (!mine.any()) return;
  inbox.wait();
  mine.write(p, received);
}

enum class Units { kOnce, kMany };  // kOnce: a warp loads all its units at once

struct Instance {
  Tile tile;
  bool once;
  void (*kernel)(RouterParameters, Split);
};

template <int kRows, int kColumns, int kFlight, int kResident, Units kUnits, class X = __nv_bfloat16,
          class W = __nv_bfloat16, bool kAnyRows = false>
constexpr Instance instance() {
  constexpr bool kOnce = kUnits == Units::kOnce;
  return {{kRows, kColumns, kFlight, kResident},
          kOnce,
          splitk<Shape<X, W, kRows, kColumns, kFlight, kOnce, kAnyRows>, kResident>};
}

// bf16, rows of x aligned to 16 bytes. 3 units per warp cover hidden up to 3072, 4 units up to 4096, 7 units up to 7168.
const Instance kInstances[] = {
    instance<8, 8, 3, 4, Units::kOnce>(),   instance<8, 16, 3, 4, Units::kOnce>(),
    instance<8, 24, 3, 4, Units::kOnce>(),  instance<8, 32, 3, 4, Units::kOnce>(),
    instance<16, 8, 3, 4, Units::kOnce>(),  instance<16, 16, 3, 4, Units::kOnce>(),
    instance<16, 24, 3, 4, Units::kOnce>(), instance<16, 32, 3, 4, Units::kOnce>(),
    instance<32, 32, 3, 3, Units::kOnce>(), instance<8, 8, 4, 4, Units::kOnce>(),
    instance<8, 16, 4, 4, Units::kOnce>(),  instance<8, 24, 4, 4, Units::kOnce>(),
    instance<8, 32, 4, 4, Units::kOnce>(),  instance<16, 8, 4, 4, Units::kOnce>(),
    instance<16, 16, 4, 4, Units::kOnce>(), instance<16, 24, 4, 4, Units::kOnce>(),
    instance<16, 32, 4, 3, Units::kOnce>(), instance<32, 32, 4, 2, Units::kOnce>(),
    instance<8, 8, 7, 4, Units::kOnce>(),   instance<8, 16, 7, 4, Units::kOnce>(),
    instance<8, 24, 7, 3, Units::kOnce>(),  instance<16, 16, 7, 3, Units::kOnce>(),
    instance<16, 24, 7, 2, Units::kOnce>(), instance<8, 16, 4, 4, Units::kMany>(),
    instance<16, 16, 4, 4, Units::kMany>(), instance<16, 24, 4, 4, Units::kMany>(),
    instance<16, 32, 4, 3, Units::kMany>(), instance<32, 32, 3, 3, Units::kMany>(),
};
// The kernel for all other problems.
template <class X, class W>
constexpr Instance any_instance() {
  return instance<kAnyTile.tokens, kAnyTile.experts, kAnyTile.flight, kAnyTile.resident, Units::kMany, X, W,
                  true>();
}

const Instance& instance_for(const Split& s, int64_t tokens, int64_t experts) {
  const Instance* best = nullptr;
  double least = 0;
  for (const Instance& i : kInstances) {
    if (i.once && s.warp_units > i.tile.flight) continue;
    const double us = tile_us(i.tile, s, tokens, experts);
    if (best && us >= least) continue;
    best = &i;
    least = us;
  }
  return *best;
}

Status launch_splitk(const RouterParameters& p, const Instance& use, const Split& split, Stream stream) {
  const Tile& tile = use.tile;
  const Launch how{.grid = {kBlocks, static_cast<unsigned>(parts(p.experts, tile.experts)),
                            static_cast<unsigned>(parts(p.tokens, tile.tokens))},
                   .block = {kThreads, 1, 1},
                   .shared_bytes = static_cast<size_t>(tile.tokens * tile.experts) * sizeof(float) *
                                   static_cast<size_t>(kWarps + 1),
                   .cluster = {kBlocks, 1, 1}};
  return launch(router_gemm_splitk_sm90.name, use.kernel, how, stream, p, split);
}

Status Launcher::enqueue(const RouterGemm::Problem& p, const RouterGemm::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  using B = __nv_bfloat16;
  const RouterParameters parameters = router_parameters(p, a);
  const Split split = split_of(p.hidden);
  const bool x_f32 = p.x == DType::kF32, w_f32 = p.w == DType::kF32;
  if (!x_f32 && !w_f32 && parameters.x_wide)
    return launch_splitk(parameters, instance_for(split, p.tokens, p.experts), split, stream);
  const Instance any = x_f32 ? (w_f32 ? any_instance<float, float>() : any_instance<float, B>())
                             : (w_f32 ? any_instance<B, float>() : any_instance<B, B>());
  return launch_splitk(parameters, any, split, stream);
}

}  // namespace

}  // namespace sluice::cuda
#endif
