// Router GEMM for many tokens: experts x tokens tiles by wgmma, the sum split over a cluster.
//
// A block keeps a ring of stages of 64 values of the sum each: its experts' weights and its tokens' activations, filled by
// one warp through the copy engine and multiplied by the others with the experts as the 64-row operand, so that a tile may
// have any multiple of 16 tokens and the tiles of a problem just fill the SMs. Where tiles are few, the blocks of a
// cluster take parts of the sum each; every block then sends each of the others its sums of the tokens that are theirs,
// and adds up its own in the order of the parts. Tiles with runs (kRouterRunTiles) fetch x several steps at a time, in runs
// along its rows, into a ring of its own.
//
// A launch is short and runs most of its code once, out of an instruction cache that has to be filled first: loops here
// are not unrolled unless their bodies are a few instructions. Unrolled ones cost up to 3 us.
//
// Wins    from about 192 tokens on.
// Loses   few tokens, to kernels that cut the work into smaller pieces.
// Limits  see supports(). The cut depends on the number of tokens, so it is not batch-invariant.
// Bytes   reads x once for each tile of experts and w once for each tile of tokens, from L2 all but once.
// Source  original; the contract is ops/router_gemm.h, the measurements are docs/notes/cuda-router-tile.md.
#include <cuda_bf16.h>

#include <array>
#include <iterator>
#include <utility>

#include <algorithm>

#include "backends/cuda/card.h"
#include "backends/cuda/kernels/router_gemm_tile.h"
#include "backends/cuda/kernels/router_gemm_tile_fetch.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/tensor_map.h"
#include "backends/cuda/tile/wgmma.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWideBytes = 16;
constexpr int kConsumers = 1;  // number of their barrier

using Parameters = RouterTileParameters;
using Place = RouterTilePlace;

template <int kGroups, int kTokens, int kRun>
struct Kernel : RouterFetch<kGroups, kTokens, kRun> {
  using Fetch = RouterFetch<kGroups, kTokens, kRun>;
  using Fetch::kExperts, Fetch::kWeightBytes, Fetch::kStageBytes, Fetch::kRunBytes, Fetch::kWarps,
      Fetch::kThreads;
  using Sums = float[kTokens / 2];

  // A warpgroup's share of the tile, over this block's part of the sum.
  static __device__ void multiply_all(Sums& sums, const Parameters& p, const Place& at, const uint8_t* ring,
                                      uint64_t* full, uint64_t* empty) {
    const int group = threadIdx.x / kGroupThreads;
    const bool tells = threadIdx.x % kGroupThreads == 0;
    tile::RingPlace place;
    uint32_t before = 0;
    int steps = at.steps;
    asm volatile("" : "+r"(steps));  // else it is worked out again in every step, from slow registers
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      tile::barrier_wait(full + place.stage, place.parity);
      const uint8_t* const stage = ring + place.stage * kStageBytes;
      const uint64_t a = tile::describe_tile(stage + group * kGroupBytes);
      const uint64_t b = tile::describe_tile(stage + kWeightBytes);
      tile::fence_operands();
#pragma unroll
      for (int k = 0; k < kRouterStep / 16; ++k)
        tile::multiply<kTokens>(sums, a + k * tile::kNext16, b + k * tile::kNext16, i + k);
      tile::commit_group();
      tile::wait_groups<1>();
      if (i > 0 && tells) tile::barrier_arrive(empty + before);
      before = place.stage;
      place.step(p.stages);
    }
    tile::wait_groups<0>();
    tile::hold(sums);
  }

  // multiply_all, where x comes in runs.
  static __device__ void multiply_runs(Sums& sums, const Parameters& p, const Place& at, const uint8_t* ring,
                                       uint64_t* full, uint64_t* empty, uint64_t* full_run,
                                       uint64_t* empty_run) {
    constexpr int kTileBytes = tile::kMapGroupRows * tile::kSwizzledRowBytes;
    const int group = threadIdx.x / kGroupThreads;
    const bool tells = threadIdx.x % kGroupThreads == 0;
    const uint8_t* const runs = ring + p.stages * kWeightBytes;
    tile::RingPlace of_w, of_x;
    uint32_t before = 0, before_run = 0;
    int steps = at.steps;
    asm volatile("" : "+r"(steps));  // as above
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      const int in_run = i % kRun;
      if (in_run == 0) tile::barrier_wait(full_run + of_x.stage, of_x.parity);
      tile::barrier_wait(full + of_w.stage, of_w.parity);
      const uint64_t a = tile::describe_tile(ring + of_w.stage * kWeightBytes + group * kGroupBytes);
      const uint64_t b =
          tile::describe_tile<kRun * kTileBytes>(runs + of_x.stage * kRunBytes + in_run * kTileBytes);
      tile::fence_operands();
#pragma unroll
      for (int k = 0; k < kRouterStep / 16; ++k)
        tile::multiply<kTokens>(sums, a + k * tile::kNext16, b + k * tile::kNext16, i + k);
      tile::commit_group();
      tile::wait_groups<1>();
      if (i > 0 && tells) {
        tile::barrier_arrive(empty + before);
        if (in_run == 0) tile::barrier_arrive(empty_run + before_run);
      }
      before = of_w.stage;
      of_w.step(p.stages);
      if (in_run == kRun - 1) before_run = of_x.stage, of_x.step(p.runs);
    }
    tile::wait_groups<0>();
    tile::hold(sums);
  }

  // The tile of sums in shared memory, over the ring: a row for each token, its experts side by side, and 16 bytes more so
  // that what a warp writes at a time meets in no bank.
  static constexpr int kPitch = kExperts + 4;

  static __device__ void put_sums(const Sums& sums, float* tile_sums) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int expert = warp / kGroupWarps * kGroupExperts + warp % kGroupWarps * 16 + lane / 4;
    float* const at = tile_sums + 2 * (lane % 4) * kPitch + expert;
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i)  // the order of registers: tile/wgmma.cuh
      at[(i / 4 * 8 + i % 2) * kPitch + i / 2 % 2 * 8] = sums[i];
  }

  // Tokens [first, first + count) of the tile are finished by part `part`.
  struct Range {
    int first, count;
    __device__ Range(const Parameters& p, int part)
        : first(part * p.tokens_each + min(part, p.tokens_more)),
          count(p.tokens_each + (part < p.tokens_more)) {}
    __device__ int bytes() const { return count * kPitch * static_cast<int>(sizeof(float)); }
    // that come to it from one other part: stores leave out what only pads the rows
    __device__ int message_bytes(const Parameters& p) const {
      return p.by_stores ? count * kExperts * static_cast<int>(sizeof(float)) : bytes();
    }
  };

  // Sends the other parts' blocks their tokens, by one warp: each block begins with the part behind its own, so that
  // none is sent everything at once. Its inbox has room for one message from each other part, in their order.
  static __device__ void send_parts(const Parameters& p, const Place& at, const float* tile_sums,
                                    const float* inbox, uint64_t* all_here) {
    int part = at.split;
#pragma unroll 1
    for (int i = 1; i < p.splits; ++i) {
      if (++part == p.splits) part = 0;
      const Range theirs(p, part);
      const int from = at.split - (at.split > part);
      const uint32_t to = tile::shared_address(inbox) + from * theirs.bytes();
      tile::send_by_warp(tile::remote_address(to, part), tile_sums + theirs.first * kPitch, theirs.bytes(),
                         tile::remote_address(tile::shared_address(all_here), part));
    }
  }

  // A thread sends, adds and writes four neighbouring experts of every kRows-th token.
  static constexpr int kPieces = kExperts / 4, kRows = kWarps * kWarp / kPieces;

  // The same messages as send_parts, by stores of all threads that multiply.
  static __device__ void store_parts(const Parameters& p, const Place& at, const float* tile_sums,
                                     const float* inbox, uint64_t* all_here) {
    const int expert = threadIdx.x % kPieces * 4;
    int part = at.split;
#pragma unroll 1
    for (int i = 1; i < p.splits; ++i) {
      if (++part == p.splits) part = 0;
      const Range theirs(p, part);
      const int from = at.split - (at.split > part);
      const uint32_t barrier = tile::remote_address(tile::shared_address(all_here), part);
      const uint32_t to =
          tile::remote_address(tile::shared_address(inbox + from * theirs.count * kPitch + expert), part);
#pragma unroll 2
      for (int row = threadIdx.x / kPieces; row < theirs.count; row += kRows)
        tile::store_remote(
            to + row * kPitch * static_cast<int>(sizeof(float)),
            *reinterpret_cast<const uint4*>(tile_sums + (theirs.first + row) * kPitch + expert), barrier);
    }
  }

  static __device__ float4 bias_of(const Parameters& p, int expert) {
    float bias[4] = {};
    if (p.bias)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (expert + i < p.experts) bias[i] = __bfloat162float(p.bias[expert + i]);
    return make_float4(bias[0], bias[1], bias[2], bias[3]);
  }
  static __device__ void write(const Parameters& p, int64_t token, int expert, float4 logits) {
    const float value[4] = {logits.x, logits.y, logits.z, logits.w};
    if (p.y_f32) {
      float* const y = static_cast<float*>(p.y) + token * p.y_stride + expert;
      if (p.y_wide && expert + 3 < p.experts) {
        *reinterpret_cast<float4*>(y) = logits;
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (expert + i < p.experts) y[i] = value[i];
      }
    } else {
      __nv_bfloat16* const y = static_cast<__nv_bfloat16*>(p.y) + token * p.y_stride + expert;
      if (p.y_wide && expert + 3 < p.experts) {
        __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(value[0], value[1]),
                                   __floats2bfloat162_rn(value[2], value[3])};
        *reinterpret_cast<uint2*>(y) = *reinterpret_cast<const uint2*>(pairs);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (expert + i < p.experts) y[i] = __float2bfloat16_rn(value[i]);
      }
    }
  }
  // Adds up the parts of this block's tokens in their order, and writes the logits.
  static __device__ void add_parts(const Parameters& p, const Place& at, const float* tile_sums,
                                   const float* inbox, float4 bias) {
    const int expert = threadIdx.x % kPieces * 4;
    const Range mine(p, at.split);
    const int end = min(mine.count, p.tokens - at.first_token - mine.first);
#pragma unroll 1
    for (int row = threadIdx.x / kPieces; row < end; row += kRows) {
      const float4 own = *reinterpret_cast<const float4*>(tile_sums + (mine.first + row) * kPitch + expert);
      const float* theirs = inbox + row * kPitch + expert;
      float4 total{};
#pragma unroll 4
      for (int part = 0; part < p.splits; ++part) {
        float4 add = own;
        if (part != at.split) {
          add = *reinterpret_cast<const float4*>(theirs);
          theirs += mine.count * kPitch;
        }
        total.x += add.x, total.y += add.y, total.z += add.z, total.w += add.w;
      }
      total.x += bias.x, total.y += bias.y, total.z += bias.z, total.w += bias.w;
      write(p, at.first_token + mine.first + row, at.first_expert + expert, total);
    }
  }

  static __device__ void run(const CUtensorMap& w, const CUtensorMap& x, const Parameters& p,
                             uint8_t* shared) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    uint64_t* const full = reinterpret_cast<uint64_t*>(shared + p.barriers_offset);
    uint64_t* const empty = full + p.stages;
    uint64_t* const full_run = empty + p.stages;  // none but where x comes in runs
    uint64_t* const empty_run = full_run + p.runs;
    uint64_t* const all_here = empty_run + p.runs;
    const Place at(p, kExperts, kTokens);
    if (warp == kWarps) {
      tile::prefetch_map(w);
      if constexpr (kRun > 0) tile::prefetch_map(x);
    }
    if (lane == 0) {
      // One barrier takes some 30 clocks, and all lanes of a warp take turns: so each warp makes some.
#pragma unroll 1
      for (int i = warp; i < p.stages; i += kThreads / kWarp) {
        tile::barrier_init(full + i, 1 + (kRun > 0 ? 0 : kPlainWarps));
        tile::barrier_init(empty + i, kGroups);
      }
      if constexpr (kRun > 1)
#pragma unroll 1
        for (int i = warp; i < p.runs; i += kThreads / kWarp) {
          tile::barrier_init(full_run + i, 1);
          tile::barrier_init(empty_run + i, kGroups);
        }
      if (warp == 0) tile::barrier_init(all_here, 1);
      tile::barrier_visible();
    }
    tile::release_next();
    __syncthreads();
    // Nothing is sent to a block that has no barriers yet. Only those wait for that here who have to wait for the first
    // stage anyway.
    if (p.splits > 1) tile::cluster_arrive();
    if (warp >= kWarps) {
      if constexpr (kRun == 0) {
        Fetch::produce_plain(w, p, at, shared, full, empty);
      } else if constexpr (kRun == 1) {
        Fetch::produce(w, x, p, at, shared, full, empty);
      } else {
        if (warp == kWarps)
          Fetch::produce_weights(w, p, at, shared, full, empty);
        else
          Fetch::produce_runs(x, p, at, shared + p.stages * kWeightBytes, full_run, empty_run);
      }
      if (p.splits > 1) tile::cluster_wait(), tile::cluster_arrive();
    } else {
      if (p.splits > 1) tile::cluster_wait();
      if (threadIdx.x == 0)
        tile::barrier_expect(all_here, (p.splits - 1) * Range(p, at.split).message_bytes(p));
      const float4 bias = bias_of(p, at.first_expert + threadIdx.x % kPieces * 4);
      Sums sums;
      if constexpr (kRun > 1)
        multiply_runs(sums, p, at, shared, full, empty, full_run, empty_run);
      else
        multiply_all(sums, p, at, shared, full, empty);
      tile::sync_threads<kWarps * kWarp>(kConsumers);  // no warpgroup reads the ring any more
      float* const tile_sums = reinterpret_cast<float*>(shared);
      float* const inbox = reinterpret_cast<float*>(shared + p.inbox_offset);
      put_sums(sums, tile_sums);
      tile::fence_for_async();
      tile::sync_threads<kWarps * kWarp>(kConsumers);
      tile::wait_for_previous();
      if (p.splits > 1) {
        if (p.by_stores)
          store_parts(p, at, tile_sums, inbox, all_here);
        else if (warp == 0)
          send_parts(p, at, tile_sums, inbox, all_here);
        tile::barrier_wait(all_here, 0);
        tile::cluster_arrive();
      }
      add_parts(p, at, tile_sums, inbox, bias);
    }
    // Nobody leaves before all have what it sent them.
    if (p.splits > 1) tile::cluster_wait();
  }
};

template <int kGroups, int kTokens, int kRun>
__global__ void __launch_bounds__(Kernel<kGroups, kTokens, kRun>::kThreads)
    router_gemm_tile(const __grid_constant__ CUtensorMap w,  // [experts, hidden]
                     const __grid_constant__ CUtensorMap x,  // [tokens, hidden]
                     const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  Kernel<kGroups, kTokens, kRun>::run(w, x, p, shared);
}

using Function = void (*)(CUtensorMap, CUtensorMap, Parameters);
struct Instance {
  RouterTile tile;
  Function kernel;
  int threads;
};
template <int kGroups, int kTokens, int kRun>
constexpr Instance instance() {
  return {{kGroups, kTokens, kRun},
          router_gemm_tile<kGroups, kTokens, kRun>,
          Kernel<kGroups, kTokens, kRun>::kThreads};
}
// One for each tile of a list.
template <const auto& kTiles, size_t... kIndex>
constexpr std::array<Instance, sizeof...(kIndex)> instances(std::index_sequence<kIndex...>) {
  return {instance<kTiles[kIndex].groups, kTiles[kIndex].tokens, kTiles[kIndex].run>()...};
}
constexpr auto kInstances = instances<kRouterTiles>(std::make_index_sequence<std::size(kRouterTiles)>());
constexpr auto kRunInstances =
    instances<kRouterRunTiles>(std::make_index_sequence<std::size(kRouterRunTiles)>());
constexpr Instance kPlain = instance<1, 64, 0>();

Refusal supports(const RouterGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  need_type(r, "x", p.x, DType::kBF16, "wgmma operand");
  need_type(r, "w", p.w, DType::kBF16, "wgmma operand");
  need_multiple(r, "hidden", p.hidden, 8, "16-byte rows for tensor copies");
  return r;
}

double cost_us(const RouterGemm::Problem& p, const DeviceInfo&) {
  return choose_tile(RouterGemm::at_tokens(p, std::max<int64_t>(p.tokens, 1))).us;
}

Status enqueue(const RouterGemm::Problem& p, const RouterGemm::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  return launch_tile(p, a, choose_tile(p).plan, stream);
}

}  // namespace

extern const Candidate<RouterGemm> router_gemm_tile_sm90 = {
    .name = "cuda.router_gemm.tile_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RouterGemm>,
    .enqueue = enqueue,
    .alignment_bytes = 16,
};

Status launch_tile(const RouterGemm::Problem& p, const RouterGemm::Args& a, const RouterTilePlan& wanted,
                   Stream stream) {
  const auto ceil_div = [](int64_t n, int64_t by) { return static_cast<int>((n + by - 1) / by); };
  const int steps = ceil_div(p.hidden, kRouterStep);
  const bool mapped = bytes_of(a.x.dtype, a.x.stride[0]) % tile::kMapStrideBytes == 0;
  RouterTilePlan plan = wanted;
  const Instance* use = nullptr;
  if (!mapped) {
    constexpr int kPlainSplits = 4;
    plan = {.tile = {kPlain.tile.groups, kPlain.tile.tokens}, .splits = std::min(kPlainSplits, steps)};
    use = &kPlain;
  } else {
    for (const Instance& i : kInstances)
      if (i.tile == plan.tile) use = &i;
    const bool in_runs = p.hidden % kRouterStep == 0 && p.tokens % tile::kMapGroupRows == 0;
    for (const Instance& i : kRunInstances)
      if (in_runs && i.tile == plan.tile) use = &i;
  }
  const RouterTileMemory memory = tile_memory(plan, p.hidden);
  if (!use || memory.stages == 0)
    return invalid("router_gemm: no kernel for tiles of " + std::to_string(plan.tile.experts()) +
                   " experts x " + std::to_string(plan.tile.tokens) + " tokens in " +
                   std::to_string(plan.splits) + " parts, runs of " + std::to_string(plan.tile.run));
  const Launch how{.grid = {static_cast<unsigned>(plan.splits),
                            static_cast<unsigned>(ceil_div(p.experts, plan.tile.experts())),
                            static_cast<unsigned>(ceil_div(p.tokens, plan.tile.tokens))},
                   .block = {static_cast<unsigned>(use->threads), 1, 1},
                   .shared_bytes = static_cast<size_t>(memory.bytes),
                   .cluster = {static_cast<unsigned>(plan.splits), 1, 1}};
  const Parameters parameters{
      .x = a.x.as<const __nv_bfloat16>(),
      .bias = a.bias.as<const __nv_bfloat16>(),
      .y = a.y.data,
      .x_stride = a.x.stride[0],
      .y_stride = a.y.stride[0],
      .tokens = static_cast<int>(p.tokens),
      .experts = static_cast<int>(p.experts),
      .hidden = static_cast<int>(p.hidden),
      .splits = plan.splits,
      .stages = memory.stages,
      .runs = memory.runs,
      .steps_each = steps / plan.splits,
      .steps_more = steps % plan.splits,
      .tokens_each = plan.tile.tokens / plan.splits,
      .tokens_more = plan.tile.tokens % plan.splits,
      .inbox_offset = memory.inbox_offset,
      .barriers_offset = memory.barriers_offset,
      .by_stores = plan.exchange == RouterExchange::kStores,
      .y_f32 = p.y == DType::kF32,
      .y_wide = reinterpret_cast<uintptr_t>(a.y.data) % kWideBytes == 0 && a.y.stride[0] % 4 == 0};
  CUtensorMap w{}, x{};
  Status status = tile::map_rows(w, a.w, plan.tile.experts());
  if (status.ok() && mapped)
    status = plan.tile.run > 1 ? tile::map_row_runs(x, a.x, plan.tile.tokens, plan.tile.run)
                               : tile::map_rows(x, a.x, plan.tile.tokens);
  if (!status.ok()) return status;
  return launch(router_gemm_tile_sm90.name, use->kernel, how, stream, w, x, parameters);
}

}  // namespace sluice::cuda
