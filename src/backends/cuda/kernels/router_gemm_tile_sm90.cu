// Router GEMM for many tokens: experts x tokens tiles by wgmma, the sum split over a cluster.
//
// A block keeps a ring of stages of 64 values of the sum each: its experts' weights and its tokens' activations, filled by
// one warp through the copy engine, multiplied by the other warpgroups with the experts as the 64-row operand, so that a
// tile may have any multiple of 16 tokens and the tiles of a problem just fill the SMs. Where tiles are few, the blocks of
// a cluster take parts of the sum each; then every block sends each of the others its part of the tokens that are theirs
// and adds up its own, in the order of the parts. Blocks of a cluster that need the same weights or tokens load a part
// each and send it to all.
//
// Wins    from about 192 tokens on.
// Loses   few tokens, to kernels that split the sum further.
// Limits  see supports(). The cut depends on the number of tokens, so it is not batch-invariant.
// Bytes   reads x once for each tile of experts and w once for each tile of tokens, from L2 all but once.
// Source  original; the contract is ops/router_gemm.h, the measurements are docs/notes/cuda-router-tile.md.
#include <cuda_bf16.h>

#include "backends/cuda/card.h"
#include "backends/cuda/kernels/router_gemm_tile.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/registers.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/tensor_map.h"
#include "backends/cuda/tile/wgmma.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWarp = 32, kGroupWarps = 4, kGroupThreads = kWarp * kGroupWarps;
constexpr int kBlockExperts = 64, kBlockBytes = kBlockExperts * tile::kSwizzledRowBytes;
constexpr int kFragmentBytes = 16 * kWarp;  // one warp's 16 experts x 8 tokens
// Weights that are asked for before the kernel in front has ended. More of them delays x, which queues behind them.
constexpr int kAheadBytes = 48 << 10;
// Of a thread, after they have moved; (128 * 24 + 256 * 240) <= 65536.
constexpr int kRegistersLeft = 24, kRegistersTaken = 240;
constexpr int kTogether = 4;    // parts of a sum that are asked for before the first is added
constexpr int kPlainWarps = 4;  // that fetch x where the copy engine cannot

struct Parameters {
  const __nv_bfloat16 *x, *bias;
  void* y;
  int64_t x_stride, y_stride;  // elements
  int tokens, experts, hidden;
  int splits, share_w, share_x, stages;
  int barriers_offset;
  bool y_f32;
};

// Where this block stands: which tile, which part of the sum, and which blocks of its cluster it shares what with.
struct Place {
  int split, first_expert, first_token, first_step, steps;
  int rank_of_split_0;  // in the cluster: + s is the block with part s of the same tile
  int peer_x, peer_w;   // its number among those that share x, and w
  int rank_of_peer_x0, rank_of_peer_w0, step_x, step_w;  // ranks of the peers: first and distance

  __device__ Place(const Parameters& p, int tile_experts, int tile_tokens) {
    const int expert_tile = blockIdx.x / p.splits;
    split = blockIdx.x % p.splits;
    first_expert = expert_tile * tile_experts;
    first_token = blockIdx.y * tile_tokens;
    const int all = (p.hidden + kRouterStep - 1) / kRouterStep, each = all / p.splits, more = all % p.splits;
    first_step = split * each + min(split, more);
    steps = each + (split < more);
    peer_x = expert_tile % p.share_x;
    peer_w = blockIdx.y % p.share_w;
    step_x = p.splits;
    step_w = p.splits * p.share_x;
    rank_of_split_0 = peer_w * step_w + peer_x * step_x;
    rank_of_peer_x0 = peer_w * step_w + split;
    rank_of_peer_w0 = peer_x * step_x + split;
  }
};

template <int kRows>
__device__ void load_shared_box(uint8_t* to, const CUtensorMap& map, int column, int row, uint64_t* full,
                                int peers, int peer, uint16_t blocks) {
  if (peers == 1) {
    tile::copy_box(to, map, column, row, full);
  } else {
    const int rows = kRows / peers;
    tile::copy_box_to_all(to + peer * rows * tile::kSwizzledRowBytes, map, column, row + peer * rows, full,
                          blocks);
  }
}

__device__ uint16_t block_mask(int first, int step, int blocks) {
  uint32_t mask = 0;
  for (int i = 0; i < blocks; ++i) mask |= 1u << (first + i * step);
  return static_cast<uint16_t>(mask);
}

template <int kGroups, int kBlocks, int kTokens, bool kMapped>
struct Kernel {
  static constexpr int kWeightRows = kBlockExperts * kGroups * kBlocks;
  static constexpr int kWeightBytes = kWeightRows * tile::kSwizzledRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kTokens * tile::kSwizzledRowBytes;
  static constexpr int kWarps = kGroups * kGroupWarps;  // that multiply
  // Sums that need more registers than every warp could have: they move from a whole group that fills the ring.
  static constexpr bool kMoves = kBlocks * kTokens > 256;
  static constexpr int kThreads = kWarp * (kWarps + (!kMapped ? kPlainWarps : kMoves ? kGroupWarps : 1));
  static constexpr int kColumns = kTokens / 8;  // groups of 8 tokens: a fragment each
  // Registers allow two blocks in an SM.
  static constexpr int kResident = kBlocks * kTokens <= 128 ? 2 : 1;
  using Sums = float[kBlocks][kTokens / 2];

  // The warp that fills the ring through the copy engine.
  static __device__ void produce(const CUtensorMap& w, const CUtensorMap& x, const Parameters& p,
                                 const Place& at, uint8_t* ring, uint64_t* full, uint64_t* empty) {
    const uint16_t w_blocks = block_mask(at.rank_of_peer_w0, at.step_w, p.share_w);
    const uint16_t x_blocks = block_mask(at.rank_of_peer_x0, at.step_x, p.share_x);
    constexpr int kAhead = kAheadBytes / kWeightBytes > 0 ? kAheadBytes / kWeightBytes : 1;
    const int ahead = min(min(kAhead, p.stages), at.steps);
    const auto load_w = [&](int i, int stage) {
      tile::barrier_expect_by_warp(full + stage, kStageBytes);
      load_shared_box<kWeightRows>(ring + stage * kStageBytes, w, (at.first_step + i) * kRouterStep,
                                   at.first_expert, full + stage, p.share_w, at.peer_w, w_blocks);
    };
    const auto load_x = [&](int i, int stage) {
      load_shared_box<kTokens>(ring + stage * kStageBytes + kWeightBytes, x,
                               (at.first_step + i) * kRouterStep, at.first_token, full + stage, p.share_x,
                               at.peer_x, x_blocks);
    };
    for (int i = 0; i < ahead; ++i) load_w(i, i);
    tile::wait_for_previous();
    tile::RingPlace place;
    for (int i = 0; i < at.steps; ++i) {
      if (i >= p.stages) tile::barrier_wait(empty + place.stage, place.parity ^ 1);
      if (i >= ahead) load_w(i, place.stage);
      load_x(i, place.stage);
      place.step(p.stages);
    }
  }

  // The warps that fill the ring where rows of x do not begin at multiples of 16 bytes: w as above, x by plain loads.
  static __device__ void produce_plain(const CUtensorMap& w, const Parameters& p, const Place& at,
                                       uint8_t* ring, uint64_t* full, uint64_t* empty) {
    const int warp = threadIdx.x / kWarp - kWarps, lane = threadIdx.x % kWarp;
    tile::wait_for_previous();
    tile::RingPlace place;
    for (int i = 0; i < at.steps; ++i) {
      if (i >= p.stages) tile::barrier_wait(empty + place.stage, place.parity ^ 1);
      uint8_t* const stage = ring + place.stage * kStageBytes;
      if (warp == 0) {
        tile::barrier_expect_by_warp(full + place.stage, kWeightBytes);
        tile::copy_box(stage, w, (at.first_step + i) * kRouterStep, at.first_expert, full + place.stage);
      }
      const int column = (at.first_step + i) * kRouterStep + 2 * lane;
#pragma unroll 4
      for (int row = warp; row < kTokens; row += kPlainWarps) {
        __nv_bfloat162 pair{};
        if (at.first_token + row < p.tokens) {
          const __nv_bfloat16* const from = p.x + (at.first_token + row) * p.x_stride + column;
          if (column < p.hidden) pair.x = from[0];
          if (column + 1 < p.hidden) pair.y = from[1];
        }
        *reinterpret_cast<__nv_bfloat162*>(stage + kWeightBytes + tile::swizzled(row, sizeof pair * lane)) =
            pair;
      }
      tile::fence_for_async();
      __syncwarp();
      if (lane == 0) tile::barrier_arrive(tile::shared_address(full + place.stage));
      place.step(p.stages);
    }
  }

  // A warpgroup's share of the tile, over this block's part of the sum.
  static __device__ void multiply_all(Sums& sums, const Parameters& p, const Place& at, const uint8_t* ring,
                                      uint64_t* full, uint64_t* empty) {
    const int group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
    // Thread i of the group tells the i-th of the blocks that send into this block's ring; the last peers of w are
    // those that share x but are not this block.
    const int listeners = p.share_w + p.share_x - 1;
    int rank = at.rank_of_peer_w0 + thread * at.step_w;
    if (thread >= p.share_w) {
      const int other = thread - p.share_w;
      rank = at.rank_of_peer_x0 + (other + (other >= at.peer_x)) * at.step_x;
    }
    const bool tells = thread < listeners;
    const uint32_t told = tells ? tile::remote_address(tile::shared_address(empty), rank) : 0;
    tile::RingPlace place;
    uint32_t before = 0;
    for (int i = 0; i < at.steps; ++i) {
      tile::barrier_wait(full + place.stage, place.parity);
      const uint8_t* const stage = ring + place.stage * kStageBytes;
      const uint64_t a = tile::describe_tile(stage + group * kBlocks * kBlockBytes);
      const uint64_t b = tile::describe_tile(stage + kWeightBytes);
      tile::fence_operands();
#pragma unroll
      for (int k = 0; k < kRouterStep / 16; ++k)
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
          tile::multiply<kTokens>(sums[block], a + k * tile::kNext16 + block * (kBlockBytes / 16),
                                  b + k * tile::kNext16, i + k);
      tile::commit_group();
      tile::wait_groups<1>();
      if (i > 0 && tells) tile::barrier_arrive(told + before * sizeof(uint64_t));
      before = place.stage;
      place.step(p.stages);
    }
    tile::wait_groups<0>();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) tile::hold(sums[block]);
  }

  // The logits of one fragment: 16 experts x 8 tokens of a warp.
  struct Writer {
    const Parameters& p;
    int token, expert;
    float bias[kBlocks][2] = {};

    __device__ Writer(const Parameters& parameters, const Place& at) : p(parameters) {
      const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
      token = at.first_token + 2 * (lane % 4);
      expert =
          at.first_expert + warp / kGroupWarps * kBlocks * kBlockExperts + warp % kGroupWarps * 16 + lane / 4;
      if (!p.bias) return;
#pragma unroll
      for (int i = 0; i < kBlocks * 2; ++i)
        if (expert + i / 2 * kBlockExperts + i % 2 * 8 < p.experts)
          bias[i / 2][i % 2] = __bfloat162float(p.bias[expert + i / 2 * kBlockExperts + i % 2 * 8]);
    }
    __device__ void write(int block, int column, const float (&value)[4]) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = token + column * 8 + i % 2, e = expert + block * kBlockExperts + i / 2 * 8;
        if (t >= p.tokens || e >= p.experts) continue;
        const float logit = value[i] + bias[block][i / 2];
        if (p.y_f32) {
          static_cast<float*>(p.y)[t * p.y_stride + e] = logit;
        } else {
          static_cast<__nv_bfloat16*>(p.y)[t * p.y_stride + e] = __float2bfloat16_rn(logit);
        }
      }
    }
  };

  // Where a thread's four sums of a fragment lie among what its block leaves for the others.
  static __device__ uint32_t left_at(int column, int block) {
    return ((column * kBlocks + block) * kWarps + threadIdx.x / kWarp) * kFragmentBytes +
           threadIdx.x % kWarp * 16;
  }

  // Of the kColumns fragments that each warp holds, block s of the tile's parts finishes those with
  // (column + warp) % splits == s, and leaves the others in its shared memory, over the ring.
  static __device__ void leave_parts(const Sums& sums, const Parameters& p, const Place& at, uint8_t* left) {
    int owner = threadIdx.x / kWarp % p.splits;
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      if (owner != at.split)
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          const float* const v = sums[block] + 4 * column;
          *reinterpret_cast<float4*>(left + left_at(column, block)) = make_float4(v[0], v[1], v[2], v[3]);
        }
      if (++owner == p.splits) owner = 0;
    }
  }
  // Adds up this block's fragments in the order of the parts.
  static __device__ void add_parts(const Sums& sums, const Parameters& p, const Place& at,
                                   const uint8_t* left, const Writer& writer) {
    int owner = threadIdx.x / kWarp % p.splits;
    const uint32_t here = tile::shared_address(left);
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      if (owner == at.split)
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          const float* const v = sums[block] + 4 * column;
          float total[4] = {};
          for (int first = 0; first < p.splits; first += kTogether) {
            float4 part[kTogether];
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
              part[i] = make_float4(v[0], v[1], v[2], v[3]);
              if (first + i < p.splits && first + i != at.split)
                part[i] = tile::load_remote(
                    tile::remote_address(here + left_at(column, block), at.rank_of_split_0 + first + i));
            }
#pragma unroll
            for (int i = 0; i < kTogether; ++i)
              if (first + i < p.splits)
                total[0] += part[i].x, total[1] += part[i].y, total[2] += part[i].z, total[3] += part[i].w;
          }
          writer.write(block, column, total);
        }
      if (++owner == p.splits) owner = 0;
    }
  }

  static __device__ void run(const CUtensorMap& w, const CUtensorMap& x, const Parameters& p,
                             uint8_t* shared) {
    uint64_t* const full = reinterpret_cast<uint64_t*>(shared + p.barriers_offset);
    uint64_t* const empty = full + p.stages;
    const Place at(p, kWeightRows, kTokens);
    const int warp = threadIdx.x / kWarp;
    const bool shares = p.share_w * p.share_x > 1;
    tile::release_next();
    if (warp == kWarps && threadIdx.x % kWarp == 0) {
      tile::prefetch_map(w);
      if constexpr (kMapped) tile::prefetch_map(x);
      for (int i = 0; i < p.stages; ++i) {
        tile::barrier_init(full + i, 1 + (kMapped ? 0 : kPlainWarps));
        tile::barrier_init(empty + i, kGroups * (p.share_w + p.share_x - 1));
      }
      tile::barrier_visible();
    }
    __syncthreads();
    if (shares) tile::cluster_arrive_relaxed(), tile::cluster_wait();
    if (warp >= kWarps) {
      if constexpr (kMoves) tile::give_registers<kRegistersLeft>();
      if constexpr (!kMapped) {
        produce_plain(w, p, at, shared, full, empty);
      } else if (warp == kWarps) {
        produce(w, x, p, at, shared, full, empty);
      }
      if (p.splits > 1) tile::cluster_arrive_relaxed(), tile::cluster_wait();
    } else {
      if constexpr (kMoves) tile::take_registers<kRegistersTaken>();
      const Writer writer(p, at);
      Sums sums;
      multiply_all(sums, p, at, shared, full, empty);
      tile::wait_for_previous();
      if (p.splits > 1) {
        tile::sync_threads<kWarps * kWarp>(1);  // no warpgroup reads the ring any more
        leave_parts(sums, p, at, shared);
        tile::cluster_arrive(), tile::cluster_wait();
        add_parts(sums, p, at, shared, writer);
      } else {
#pragma unroll
        for (int column = 0; column < kColumns; ++column)
#pragma unroll
          for (int block = 0; block < kBlocks; ++block) {
            const float* const v = sums[block] + 4 * column;
            const float value[4] = {v[0], v[1], v[2], v[3]};
            writer.write(block, column, value);
          }
      }
    }
    // Nobody leaves while others read or signal in its shared memory.
    if (shares || p.splits > 1) tile::cluster_arrive_relaxed(), tile::cluster_wait();
  }
};

template <int kGroups, int kBlocks, int kTokens, bool kMapped>
__global__ void __launch_bounds__(Kernel<kGroups, kBlocks, kTokens, kMapped>::kThreads,
                                  Kernel<kGroups, kBlocks, kTokens, kMapped>::kResident)
    router_gemm_tile(const __grid_constant__ CUtensorMap w,  // [experts, hidden]
                     const __grid_constant__ CUtensorMap x,  // [tokens, hidden]
                     const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  Kernel<kGroups, kBlocks, kTokens, kMapped>::run(w, x, p, shared);
}

using Function = void (*)(CUtensorMap, CUtensorMap, Parameters);
struct Instance {
  RouterTile tile;
  Function kernel;
  int threads;
};
template <int kGroups, int kBlocks, int kTokens, bool kMapped = true>
constexpr Instance instance() {
  return {{kGroups, kBlocks, kTokens},
          router_gemm_tile<kGroups, kBlocks, kTokens, kMapped>,
          Kernel<kGroups, kBlocks, kTokens, kMapped>::kThreads};
}
constexpr Instance kInstances[] = {
    instance<1, 1, 32>(),  instance<1, 1, 64>(),  instance<1, 1, 128>(), instance<1, 1, 256>(),
    instance<2, 1, 64>(),  instance<2, 1, 128>(), instance<2, 1, 144>(), instance<2, 1, 192>(),
    instance<2, 1, 208>(), instance<2, 1, 256>(), instance<2, 2, 128>(), instance<2, 2, 144>(),
};
constexpr Instance kPlain = instance<1, 1, 64, false>();

Refusal supports(const RouterGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  need_type(r, "x", p.x, DType::kBF16, "wgmma operand");
  need_type(r, "w", p.w, DType::kBF16, "wgmma operand");
  need_multiple(r, "hidden", p.hidden, 8, "16-byte rows for tensor copies");
  return r;
}

double cost_us(const RouterGemm::Problem& p, const DeviceInfo& d) { return choose_tile(p, d).us; }

Status enqueue(const RouterGemm::Problem& p, const RouterGemm::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  DeviceInfo device;
  const Status status =
      check(cudaDeviceGetAttribute(&device.cores, cudaDevAttrMultiProcessorCount, queue_of(stream).device),
            "count of SMs");
  if (!status.ok()) return status;
  return launch_tile(p, a, choose_tile(p, device).plan, stream);
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
  RouterTilePlan plan = wanted;
  const bool mapped = bytes_of(a.x.dtype, a.x.stride[0]) % tile::kMapStrideBytes == 0;
  if (!mapped)
    plan = {.tile = kPlain.tile,
            .splits = static_cast<int>(std::min<int64_t>(4, (p.hidden + kRouterStep - 1) / kRouterStep)),
            .resident = 2};
  const Instance* use = mapped ? nullptr : &kPlain;
  for (const Instance& i : kInstances)
    if (mapped && i.tile == plan.tile) use = &i;
  const RouterTileMemory memory = tile_memory(plan, p.hidden);
  if (!use || memory.stages == 0)
    return invalid("router_gemm: no kernel for tiles of " + std::to_string(plan.tile.experts()) +
                   " experts x " + std::to_string(plan.tile.tokens) + " tokens in " +
                   std::to_string(plan.splits) + " parts");
  const auto tiles = [](int64_t n, int tile, int shared) {
    const int64_t group = static_cast<int64_t>(tile) * shared;
    return static_cast<unsigned>((n + group - 1) / group * shared);
  };
  const Launch how{
      .grid = {tiles(p.experts, plan.tile.experts(), plan.share_x) * plan.splits,
               tiles(p.tokens, plan.tile.tokens, plan.share_w), 1},
      .block = {static_cast<unsigned>(use->threads), 1, 1},
      .shared_bytes = static_cast<size_t>(memory.bytes),
      .cluster = {static_cast<unsigned>(plan.splits * plan.share_x), static_cast<unsigned>(plan.share_w), 1}};
  const Parameters parameters{.x = a.x.as<const __nv_bfloat16>(),
                              .bias = a.bias.as<const __nv_bfloat16>(),
                              .y = a.y.data,
                              .x_stride = a.x.stride[0],
                              .y_stride = a.y.stride[0],
                              .tokens = static_cast<int>(p.tokens),
                              .experts = static_cast<int>(p.experts),
                              .hidden = static_cast<int>(p.hidden),
                              .splits = plan.splits,
                              .share_w = plan.share_w,
                              .share_x = plan.share_x,
                              .stages = memory.stages,
                              .barriers_offset = memory.barriers_offset,
                              .y_f32 = p.y == DType::kF32};
  CUtensorMap w{}, x{};
  Status status = tile::map_rows(w, a.w, plan.tile.experts() / plan.share_w);
  if (status.ok() && mapped) status = tile::map_rows(x, a.x, plan.tile.tokens / plan.share_x);
  if (!status.ok()) return status;
  return launch(router_gemm_tile_sm90.name, use->kernel, how, stream, w, x, parameters);
}

}  // namespace sluice::cuda
