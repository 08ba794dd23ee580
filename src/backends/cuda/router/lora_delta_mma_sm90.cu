// LoRA delta on tensor cores, in one launch. A CTA, or a cluster of up to 8, computes a tile of 16 or 32 tokens.
//
// For each adapter of the tile's tokens, all warps multiply the whole tile by A; a warp sums over its part of the columns and
// keeps the rows of the tokens with that adapter. The warps of a CTA add up their sums in shared memory; then the CTAs of a
// cluster read each other's sums. A x is split into three bf16 terms, without rounding. Each warp multiplies A x by its part
// of the features of B and adds the result to y. Operands of mma.sync are loaded directly from global memory (tile/mma.cuh).
//
// Wins    at hidden 2880 with four adapters (lora.csv): beyond 64 tokens, at rank 64 from 64 tokens on: 6.5 us against 9.7 us of
//         cluster_sm90 at 128 tokens of rank 16, 8.9 us against 9.8 us at 64 tokens of rank 64.
// Loses   to cluster_sm90 at 8 to 64 tokens of rank 16, by 2.0 to 8.1 us: there a cluster computes one token, so no warp multiplies
//         rows of tokens with other adapters.
// Limits  see supports() below. A tile's time grows with the number of its adapters. The split of a sum depends on the number of
//         tokens, so the kernel is not batch-invariant.
// Bytes   reads x once per adapter of a tile, and A and B of an adapter once per tile that has a token with it.
// Source  original; the contract is ops/lora_delta.h, the design is docs/lab/cuda-lora.md.
#include "backends/cuda/card.h"
#include "ops/lora_delta.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kUnit = 32;  // elements of a row that four lanes load together
constexpr int kBlockMemory = 227 << 10;

// Tokens per tile; CTAs per cluster.
struct Tile {
  int tokens, blocks;
};
constexpr Tile kTiles[] = {{16, 8}, {16, 4}, {16, 2}, {16, 1}, {32, 2}, {32, 1}};

int parts(int64_t size, int64_t of) { return static_cast<int>((size + of - 1) / of); }

// Shared memory: the sums of each warp, of the CTA, and of the cluster, each [tokens][pitch].
// The padding of 8 floats puts the rows that half a warp stores into different banks.
int pitch_of(const LoraDelta::Problem& p) { return static_cast<int>(p.rank) + 8; }
size_t shared_bytes(const LoraDelta::Problem& p, const Tile& t) {
  return sizeof(float) * static_cast<size_t>((kWarps + 2) * t.tokens * pitch_of(p));
}

Refusal supports(const LoraDelta::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  need_type(r, "x", p.x, DType::kBF16, "operand of mma.sync");
  need_type(r, "w", p.w, DType::kBF16, "operand of mma.sync");
  need_multiple(r, "hidden", p.hidden, 8, "16-byte chunks of a row");
  need_multiple(r, "rank", p.rank, 8, "16-byte chunks of a row of b");
  r.need(p.hidden >= 128, "hidden >= 128 (shorter sums may miss their bound on tensor cores)", "hidden",
         p.hidden);
  r.need(p.rank <= 256, "rank <= 256 (each warp's sums in shared memory)", "rank", p.rank);
  r.need(p.tokens < (int64_t{1} << 27), "tokens < 2^27 (CTAs in a grid)", "tokens", p.tokens);
  return r;
}

// Fitted to measured times on an H200; the error is within 12% (docs/lab/cuda-lora.md).
struct Constants {
  double launch_us = 3.4;        // includes the exchange between warps, the product with B, and y
  double cluster_us = 0.93;      // the exchange between CTAs
  double block_per_us = 34.8e3;  // read rate of one CTA
  double sm_per_us = 20.2e3;     // read rate of all CTAs of an SM together
  double rank_us = 0.31;         // sums and products, per 8 of rank and per 16 tokens of a CTA's tile
  // per adapter of a tile after its first; adapter_rank_us: the same per unit of rank
  double adapter_us = 1.7;
  double adapter_rank_us = 0.016;
  double resident = 2;  // CTAs per SM
};
constexpr Constants kCost;

double tile_us(const LoraDelta::Problem& p, const DeviceInfo& d, const Tile& t) {
  const double tiles = parts(std::max<int64_t>(p.tokens, 1), t.tokens), blocks = tiles * t.blocks;
  const double bytes =
      2.0 * (t.tokens + static_cast<double>(p.rank)) * static_cast<double>(p.hidden) / t.blocks +
      2.0 * static_cast<double>(p.rank * p.features) / t.blocks;
  const double sums = kCost.rank_us * static_cast<double>(p.rank) / 8 * t.tokens / 16;
  const double alone = bytes / kCost.block_per_us + sums;
  const double of_an_sm = blocks / d.cores;  // average CTAs per SM
  const double waves = std::max(1.0, blocks / (kCost.resident * d.cores));
  const double together = of_an_sm * (bytes / kCost.sm_per_us + sums);
  const double memory = 2.0 * static_cast<double>(p.tokens * p.hidden) / d.mem_bytes_per_us;
  // The expected number of additional adapters in a tile, if tokens with the same adapter are adjacent.
  const double tokens = static_cast<double>(std::max<int64_t>(p.tokens, 1));
  const double more = std::min({static_cast<double>(p.adapters - 1), tokens - 1, t.tokens - 1.0,
                                static_cast<double>(p.adapters - 1) * t.tokens / tokens});
  const double adapters = more * (kCost.adapter_us + kCost.adapter_rank_us * static_cast<double>(p.rank));
  return kCost.launch_us + (t.blocks > 1 ? kCost.cluster_us * waves : 0) + std::max(0.0, adapters) +
         std::max({alone, together, memory});
}

std::vector<Config> configs(const LoraDelta::Problem& p, const DeviceInfo& d) {
  std::vector<Config> out;
  for (const Tile& t : kTiles) {
    Config config{.name = std::to_string(t.tokens) + "x" + std::to_string(t.blocks),
                  .cost_us = tile_us(p, d, t),
                  .launches = {{.value = {t.tokens, t.blocks}}}};
    const size_t bytes = shared_bytes(p, t);
    config.refusal.need(bytes <= kBlockMemory, "sums within 227 KiB of shared memory", "bytes",
                        static_cast<int64_t>(bytes));
    out.push_back(std::move(config));
  }
  return out;
}

std::string launch_text(const LoraDelta::Problem&, const KernelLaunch& launch) {
  return "tiles of " + std::to_string(launch.value[0]) + " tokens, the columns of one split among " +
         std::to_string(launch.value[1]) + " CTAs";
}

struct Launcher {
  static Status enqueue(const LoraDelta::Problem&, std::span<const KernelLaunch>, const LoraDelta::Args&,
                        Workspace, Stream);
};

}  // namespace

extern const Candidate<LoraDelta> lora_delta_mma_sm90 = {
    .name = "cuda.lora_delta.mma_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .enqueue_config = enqueue_config_of<LoraDelta, Launcher>(),
    .launch_text = launch_text,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/operand_products.cuh"
#include "backends/cuda/tile/vector.cuh"

namespace sluice::cuda {
namespace {

using B16 = __nv_bfloat16;

struct Parameters {
  const B16 *x, *a, *b;
  const float* scale;
  const int32_t* adapter;
  void* y;
  int64_t x_stride, y_stride;  // elements between rows
  int64_t tokens;
  int features, hidden, rank, adapters;
  int blocks, units;  // CTAs per cluster; units of a row of x per warp
  int pitch;
  uint32_t zero;  // always 0, but unknown to the compiler
  bool y_bf16, x_wide;
};

// The adapter of this lane's token (-1: none), and the lanes grouped by adapter.
struct Adapters {
  int mine;
  uint32_t same;     // lanes whose token has the same adapter
  uint32_t leaders;  // the first lane of each adapter

  __device__ Adapters(const Parameters& p, int64_t first, int tokens) {
    const int lane = threadIdx.x % 32;
    const int64_t token = first + lane;
    mine = lane < tokens && token < p.tokens ? p.adapter[token] : -1;
    if (mine < 0 || mine >= p.adapters) mine = -1;
    same = __match_any_sync(~0u, mine);
    leaders = __ballot_sync(~0u, mine >= 0 && __ffs(same) - 1 == lane);
  }
  // Calls f(adapter, mask of its lanes) for each adapter. Called by all lanes of a warp.
  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll 1
    for (uint32_t rest = leaders; rest != 0; rest &= rest - 1) {
      const int leader = __ffs(rest) - 1;
      f(__shfl_sync(~0u, mine, leader), __shfl_sync(~0u, same, leader));
    }
  }
};

// Stores this warp's part of A x, sums[token][r], for the tokens in `members`, which have adapter `adapter`. Loops over kColumns rows of A at a time.
template <int kTokens, int kColumns, int kFlight, bool kAnyRows>
__device__ __forceinline__ void multiply_a(const Parameters& p, int64_t first, int slice, int adapter,
                                           uint32_t members, float* sums) {
  constexpr int kRowGroups = kTokens / 8, kColumnGroups = kColumns / 8;
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int begin = min(slice * p.units * kUnit, p.hidden), end = min(begin + p.units * kUnit, p.hidden);
#pragma unroll 1
  for (int r0 = 0; r0 < p.rank; r0 += kColumns) {
    const B16 *a[kColumnGroups], *x[kRowGroups];
#pragma unroll
    for (int n = 0; n < kColumnGroups; ++n)
      a[n] = p.a + ((int64_t{adapter} * p.rank + min(r0 + 8 * n + g, p.rank - 1)) * p.hidden + begin + 8 * c);
#pragma unroll
    for (int m = 0; m < kRowGroups; ++m)
      x[m] = p.x + (min(first + 8 * m + g, p.tokens - 1) * p.x_stride + begin + 8 * c);
    float acc[kTokens / 16][kColumnGroups][4] = {};
#pragma unroll 1
    for (int left = end - begin - 8 * c, k = begin; k < end; k += kFlight * kUnit, left -= kFlight * kUnit) {
      tile::Eight<B16> av[kFlight][kColumnGroups], xv[kFlight][kRowGroups];
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
#pragma unroll
        for (int n = 0; n < kColumnGroups; ++n)
          tile::load_weights(av[i][n], a[n] + i * kUnit, i * kUnit < left);
#pragma unroll
        for (int m = 0; m < kRowGroups; ++m)
          tile::load_inputs(xv[i][m], x[m] + i * kUnit, i * kUnit < left, !kAnyRows || p.x_wide);
      }
      // This zero depends on all loads, so no product starts before the last load has been issued.
      // Without it the compiler moves each load next to its use, which serializes the loads.
      uint32_t any = 0;
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
#pragma unroll
        for (int n = 0; n < kColumnGroups; ++n) any |= av[i][n].word[0].x;
#pragma unroll
        for (int m = 0; m < kRowGroups; ++m) any |= xv[i][m].word[0].x;
      }
      const float zero = __uint_as_float(any & p.zero);
#pragma unroll
      for (int m = 0; m < kTokens / 16; ++m)
#pragma unroll
        for (int n = 0; n < kColumnGroups; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[m][n][i] += zero;
#pragma unroll
      for (int i = 0; i < kFlight; ++i) tile::multiply_terms<B16, B16, kTokens, kColumns>(acc, xv[i], av[i]);
#pragma unroll
      for (int n = 0; n < kColumnGroups; ++n) a[n] += kFlight * kUnit;
#pragma unroll
      for (int m = 0; m < kRowGroups; ++m) x[m] += kFlight * kUnit;
    }
#pragma unroll
    for (int m = 0; m < kRowGroups; ++m) {
      const int row = 8 * m + g;
#pragma unroll
      for (int n = 0; n < kColumnGroups; ++n) {
        const float(&d)[4] = acc[m / 2][n];
        // the rank is a multiple of 8, so r and r + 1 are both inside or both outside
        const int r = r0 + 8 * n + 2 * c;
        if ((members >> row & 1) && r < p.rank)
          *reinterpret_cast<float2*>(sums + row * p.pitch + r) =
              m % 2 == 0 ? make_float2(d[0], d[1]) : make_float2(d[2], d[3]);
      }
    }
  }
}

// Adds scale * B u to y for 8 features, beginning with `feature`, and for the tokens in `members` (a mask of 16 tokens).
__device__ __forceinline__ void multiply_b(const Parameters& p, int64_t first, int feature, int adapter,
                                           uint32_t members, const float* u) {
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const B16* b = p.b + ((int64_t{adapter} * p.features + min(feature + g, p.features - 1)) * p.rank + 8 * c);
  const float scale = p.scale[adapter];
  float acc[1][1][4] = {};
#pragma unroll 1
  for (int r = 0; r < p.rank; r += kUnit) {
    const bool in = r + 8 * c < p.rank;
    tile::Eight<B16> bv[1];
    tile::Eight<float> uv[2] = {};
    tile::load_weights(bv[0], b + r, in);
    if (in)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4* from = reinterpret_cast<const uint4*>(u + (8 * half + g) * p.pitch + r + 8 * c);
        uv[half].word[0] = from[0], uv[half].word[1] = from[1];
      }
    tile::multiply_terms<float, B16, 16, 8>(acc, uv, bv);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = g + i / 2 * 8, n = feature + 2 * c + i % 2;
    if (!(members >> row & 1) || n >= p.features) continue;
    const int64_t at = (first + row) * p.y_stride + n;
    const float delta = acc[0][0][i];
    if (p.y_bf16) {
      B16& y = static_cast<B16*>(p.y)[at];
      y = __float2bfloat16_rn(fmaf(scale, delta, tile::to_f32(y)));
    } else {
      float& y = static_cast<float*>(p.y)[at];
      y = fmaf(scale, delta, y);
    }
  }
}

template <int kTokens, int kColumns, int kFlight, bool kAnyRows>
__global__ void __launch_bounds__(kThreads) lora_delta_mma(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(16) float shared[];
  const int block = blockIdx.x % p.blocks, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t first = blockIdx.x / p.blocks * int64_t{kTokens};
  const int each = kTokens * p.pitch;
  float *const part = shared + kWarps * each, *const inner = p.blocks > 1 ? part + each : part;
  tile::release_next();
  tile::wait_for_previous();
  const Adapters adapters(p, first, kTokens);
  const int slice = block * kWarps + warp;

  adapters.each([&](int adapter, uint32_t members) {
    multiply_a<kTokens, kColumns, kFlight, kAnyRows>(p, first, slice, adapter, members, shared + warp * each);
  });
  __syncthreads();
#pragma unroll 1
  for (int t = warp; t < kTokens; t += kWarps) {
    if (__shfl_sync(~0u, adapters.mine, t) < 0) continue;
    for (int r = lane; r < p.rank; r += 32) {
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kWarps; ++j) sum += shared[j * each + t * p.pitch + r];
      part[t * p.pitch + r] = sum;
    }
  }
  if (p.blocks > 1) {
    tile::cluster_publish();
    tile::cluster_wait();
#pragma unroll 1
    for (int t = warp; t < kTokens; t += kWarps) {
      if (__shfl_sync(~0u, adapters.mine, t) < 0) continue;
      for (int r = lane; r < p.rank; r += 32) {
        const uint32_t here = tile::shared_address(part + t * p.pitch + r);
        float sum = 0;
#pragma unroll 4
        for (int j = 0; j < p.blocks; ++j) sum += tile::load_remote(tile::remote_address(here, j));
        inner[t * p.pitch + r] = sum;
      }
    }
    tile::cluster_publish();  // no CTA exits while another CTA reads its shared memory
  }
  __syncthreads();

#pragma unroll 1
  for (int feature = slice * 8; feature < p.features; feature += 8 * kWarps * p.blocks)
    adapters.each([&](int adapter, uint32_t members) {
#pragma unroll 1
      for (int m = 0; m < kTokens; m += 16)
        if (const uint32_t of_these = members >> m & 0xffff; of_these != 0)
          multiply_b(p, first + m, feature, adapter, of_these, inner + m * p.pitch);
    });
  if (p.blocks > 1) tile::cluster_wait();
}

template <int kTokens, bool kAnyRows>
auto kernel_for(int64_t rank) {
  // kFlight: units that a warp loads at once; as many as leave enough registers for two CTAs per SM.
  return rank <= 16 ? lora_delta_mma < kTokens, 16, kTokens == 16 ? 4 : 3,
         kAnyRows > : rank <= 32 ? lora_delta_mma < kTokens, 32, kTokens == 16 ? 3 : 2,
         kAnyRows >              : lora_delta_mma < kTokens, 64, kTokens == 16 ? 2 : 1, kAnyRows > ;
}

Status Launcher::enqueue(const LoraDelta::Problem& p, std::span<const KernelLaunch> launches,
                         const LoraDelta::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  const Tile tile{launches[0].value[0], launches[0].value[1]};
  constexpr int64_t kBytes = 16;
  const bool wide =
      reinterpret_cast<uintptr_t>(a.x.data) % kBytes == 0 && bytes_of(a.x.dtype, a.x.stride[0]) % kBytes == 0;
  const Parameters parameters{.x = a.x.as<const B16>(),
                              .a = a.a.as<const B16>(),
                              .b = a.b.as<const B16>(),
                              .scale = a.scale.as<const float>(),
                              .adapter = a.adapter.as<const int32_t>(),
                              .y = a.y.data,
                              .x_stride = a.x.stride[0],
                              .y_stride = a.y.stride[0],
                              .tokens = p.tokens,
                              .features = static_cast<int>(p.features),
                              .hidden = static_cast<int>(p.hidden),
                              .rank = static_cast<int>(p.rank),
                              .adapters = static_cast<int>(p.adapters),
                              .blocks = tile.blocks,
                              .units = parts(parts(p.hidden, kUnit), tile.blocks * kWarps),
                              .pitch = pitch_of(p),
                              .zero = 0,
                              .y_bf16 = p.y == DType::kBF16,
                              .x_wide = wide};
  const auto kernel = tile.tokens == 16 ? wide ? kernel_for<16, false>(p.rank) : kernel_for<16, true>(p.rank)
                      : wide ? kernel_for<32, false>(p.rank)
                                        : kernel_for<32, true>(p.rank);
  const auto blocks = static_cast<unsigned>(tile.blocks);
  const Launch how{.grid = {static_cast<unsigned>(parts(p.tokens, tile.tokens)) * blocks, 1, 1},
                   .block = {kThreads, 1, 1},
                   .shared_bytes = shared_bytes(p, tile),
                   .cluster = {blocks, 1, 1}};
  return launch(lora_delta_mma_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
