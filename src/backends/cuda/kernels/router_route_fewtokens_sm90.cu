// Router GEMM and routing of few tokens in one launch: some CTAs compute partial logits; one CTA per token adds them up and
// chooses (tile/few_tokens.cuh).
//
// A partial logit is a word of Queue::grid_words, where zero means not yet published. The choosing CTA polls words, not
// counters, so the path from the sums to the choice is one store and one load. Partial logits are added in the order of k, and
// the words are reset to zero. CTAs that wait must not keep out the CTAs they wait for: they are the last of the grid, at most
// 64, and less than one per SM. Up to 32 experts a cluster does the same in shared memory.
//
// Wins    0.1 to 1.0 us, a launch and a round trip of the logits, against two kernels in turn.
// Loses   more tokens, to them: each tile of 8 or 16 tokens loads the weights again.
// Limits  see supports(): choices that need_team() accepts, and partial logits that fit the grid words. The order of a sum
//         depends on hidden and experts alone, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/router_route.h.
#include <iterator>

#include "backends/cuda/card.h"
#include "backends/cuda/grid_words.h"
#include "backends/cuda/tile/team.h"
#include "ops/router_route.h"

namespace sluice::cuda {
namespace {

using Problem = RouterRoute::Problem;
constexpr int kUnit = 32;  // elements of a row that four lanes load at once

// k is split over `split` CTAs and their `warps` warps; each warp has `flight` units of a row in flight. A CTA's tile is
// 8 * rows tokens and 8 * columns experts.
struct Cut {
  int rows, columns, split, warps, flight;
  constexpr int64_t hidden_most() const { return int64_t{kUnit} * split * warps * flight; }
};
enum class Blocks { kCluster, kGrid };

// The compiled kernels, and the problems that each of them accepts. Costs: H200, plain launches, weights not in L2.
struct Instance {
  int experts, list;
  tile::TeamKind kind;
  Blocks blocks;
  Cut cut;
  int64_t tokens;            // the most tokens
  double first_us, more_us;  // one token; each further token

  // In a grid, partial logits are words of Queue::grid_words.
  constexpr int64_t tokens_most() const {
    constexpr int64_t kWords = kGridWordsBytes / sizeof(uint32_t);
    return blocks == Blocks::kCluster ? tokens : std::min(tokens, kWords / (experts * cut.split));
  }
  bool serves(const Problem& p) const {
    return tile::team_serves(p.route, experts, list, kind) && p.hidden <= cut.hidden_most() &&
           p.route.tokens <= tokens_most();
  }
};

constexpr int64_t kTokensMost = 64;  // of any instance

// Instances of the same kind and number of experts split k in the same way, whatever their tiles, so the bits do not depend
// on the number of tokens.
constexpr Instance kInstances[] = {
    {32, 4, tile::kSoftmaxOfChosen, Blocks::kCluster, {1, 4, 16, 6, 1}, kTokensMost, 2.40, 0.006},
    {128, 4, tile::kSoftmaxOfChosen, Blocks::kGrid, {1, 1, 8, 12, 1}, 16, 2.84, 0.017},
    {128, 4, tile::kSoftmaxOfChosen, Blocks::kGrid, {2, 2, 8, 12, 1}, kTokensMost, 2.84, 0.013},
    {128, 8, tile::kSoftmaxRenormalized, Blocks::kGrid, {1, 1, 8, 12, 1}, 16, 2.94, 0.015},
    {128, 8, tile::kSoftmaxRenormalized, Blocks::kGrid, {2, 2, 8, 12, 1}, kTokensMost, 3.05, 0.010},
    {256, 8, tile::kGroupedSigmoid, Blocks::kGrid, {1, 1, 4, 14, 4}, 8, 3.95, 0.060},
    {256, 8, tile::kGroupedSigmoid, Blocks::kGrid, {1, 2, 4, 14, 4}, 16, 4.26, 0.050},
    {256, 8, tile::kBiasedSoftplus, Blocks::kGrid, {1, 1, 4, 16, 2}, 8, 3.65, 0.030},
    {256, 8, tile::kBiasedSoftplus, Blocks::kGrid, {2, 2, 4, 16, 2}, 32, 3.42, 0.045},
    {384, 8, tile::kBiasedSoftplus, Blocks::kGrid, {1, 1, 2, 16, 7}, 8, 5.04, 0.097},
};

const Instance* instance_for(const Problem& p) {
  for (const Instance& i : kInstances)
    if (i.serves(p)) return &i;
  return nullptr;
}

Refusal supports(const Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  need_type(r, "x", p.x, DType::kBF16, "operand of the tensor cores");
  need_type(r, "w", p.w, DType::kBF16, "operand of the tensor cores");
  need_multiple(r, "hidden", p.hidden, 8, "16-byte chunks of a row");
  r.need(p.hidden >= 128, "hidden >= 128 (shorter sums may miss their bound on tensor cores)", "hidden",
         p.hidden);
  int64_t tokens = 0, hidden = 0;
  for (const Instance& i : kInstances) {
    if (!tile::team_serves(p.route, i.experts, i.list, i.kind)) continue;
    tokens = std::max(tokens, i.tokens_most());
    hidden = i.cut.hidden_most();
  }
  Refusal team;
  tile::need_team(team, p.route, tokens > 0 ? tokens : kTokensMost);
  const bool known = tokens > 0 || !team.accepted();  // else the reason is this operation's own
  r.append(team);
  r.need(known, "a rule and experts that have a kernel from the gate on",
         "method=" + std::string(word(p.route.method)) + " experts=" + std::to_string(p.route.experts));
  if (tokens == 0) return r;
  r.need(p.hidden <= hidden, "hidden <= " + std::to_string(hidden) + " (all of a row is in flight at once)",
         "hidden", p.hidden);
  return r;
}

double cost_us(const Problem& p, const DeviceInfo&) {
  const Instance* i = instance_for(p);
  const double more = static_cast<double>(std::max<int64_t>(p.route.tokens, 1) - 1);
  return i ? i->first_us + more * i->more_us : 1e3 * (1 + more);
}

struct Launcher {
  static Status enqueue(const Problem&, const RouterRoute::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<RouterRoute> router_route_fewtokens_sm90 = {
    .name = "cuda.router_route.fewtokens_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RouterRoute>,
    .enqueue = enqueue_of<RouterRoute, Launcher>(),
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include <array>
#include <utility>

#include "backends/cuda/launch.h"
#include "backends/cuda/router.h"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/few_tokens.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/mma.cuh"
#include "backends/cuda/tile/operand.cuh"
#include "backends/cuda/tile/shared_slots.cuh"

namespace sluice::cuda {
namespace {

using Bf16 = __nv_bfloat16;

struct Few {
  RouterParameters gate;
  const float* bias;     // bias of the choice
  uint32_t* grid_words;  // [tokens, splits, experts]: partial logits
  int adders;            // CTAs that compute partial logits; the choosing CTAs follow
  uint32_t zero;         // 0, opaque to the compiler
  uint32_t top_k;
  tile::SharedSlots shared;
  float scale;
  int32_t* ids;
  float* weights;
};

// A Cut as a compile-time value.
template <int kRows_, int kColumns_, int kSplit_, int kWarps_, int kFlight_>
struct KnownCut {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kSplit = kSplit_, kWarps = kWarps_,
                       kFlight = kFlight_;
  static constexpr int kThreads = 32 * kWarps, kPairs = kRows * kColumns * 32;
};

// Makes a published part nonzero: +0 becomes -0, which the sum of parts cannot tell from +0.
__device__ __forceinline__ uint32_t word_of(float part) {
  const uint32_t bits = __float_as_uint(part);
  return bits == 0 ? 0x80000000u : bits;
}
__device__ __forceinline__ void publish(uint32_t* word, float2 part) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(word), "r"(word_of(part.x)),
               "r"(word_of(part.y))
               : "memory");
}
__device__ __forceinline__ uint32_t load_word(const uint32_t* word) {
  uint32_t bits;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(word) : "memory");
  return bits;
}

// Computes one CTA's partial logits of a tile. Calls send(token of the tile, expert of the tile, partial logits of two adjacent
// experts); all threads call sync() before. All loads are in flight at once, weights first and before the wait for the previous
// launch.
template <class C, bool kAnyRows, class Sync, class Send>
__device__ __forceinline__ void add_up(const RouterParameters& p, uint32_t zero_bits, int split,
                                       int first_token, int first_expert, Sync sync, Send send) {
  __shared__ float2 sums[C::kWarps][C::kPairs];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int first =
      (split * C::kWarps + warp) * C::kFlight * kUnit + 8 * c;  // of this lane's elements in a row
  const int left = p.hidden - first;
  tile::Eight<Bf16> w[C::kFlight][C::kColumns], x[C::kFlight][C::kRows];
#pragma unroll
  for (int i = 0; i < C::kFlight; ++i) {
#pragma unroll
    for (int n = 0; n < C::kColumns; ++n)
      tile::load_weights(
          w[i][n],
          static_cast<const Bf16*>(p.w) + ((first_expert + 8 * n + g) * p.hidden + first + i * kUnit),
          i * kUnit < left);
  }
  tile::release_next();
  tile::wait_for_previous();
#pragma unroll
  for (int i = 0; i < C::kFlight; ++i) {
#pragma unroll
    for (int m = 0; m < C::kRows; ++m)
      tile::load_inputs(x[i][m],
                        static_cast<const Bf16*>(p.x) +
                            (min(first_token + 8 * m + g, p.tokens - 1) * p.x_stride + first + i * kUnit),
                        i * kUnit < left, !kAnyRows || p.x_wide);
  }
  // No sum starts before the last load has been issued: this zero depends on all loads. Otherwise the compiler moves each load
  // next to its use, which serialises them.
  uint32_t any = 0;
#pragma unroll
  for (int i = 0; i < C::kFlight; ++i) {
#pragma unroll
    for (int m = 0; m < C::kRows; ++m) any |= x[i][m].word[0].x;
  }
  const float zero = __uint_as_float(any & zero_bits);
  float acc[(C::kRows + 1) / 2][C::kColumns][4];
#pragma unroll
  for (int m = 0; m < (C::kRows + 1) / 2; ++m) {
#pragma unroll
    for (int n = 0; n < C::kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[m][n][i] = zero;
    }
  }
#pragma unroll
  for (int i = 0; i < C::kFlight; ++i) {
#pragma unroll
    for (int n = 0; n < C::kColumns; ++n) {
      const uint4 b = w[i][n].word[0];
#pragma unroll
      for (int m = 0; m < (C::kRows + 1) / 2; ++m) {
        const uint4 low = x[i][2 * m].word[0];
        const uint4 high = C::kRows > 1 ? x[i][2 * m + (C::kRows > 1)].word[0] : uint4{0, 0, 0, 0};
        tile::mma(acc[m][n], {low.x, high.x, low.y, high.y}, {b.x, b.y});
        tile::mma(acc[m][n], {low.z, high.z, low.w, high.w}, {b.z, b.w});
      }
    }
  }
  // A pair's place in the tile: ((token / 8) * kColumns + expert / 8) * 32 + lane, as the lanes of an mma hold them.
#pragma unroll
  for (int m = 0; m < C::kRows; ++m) {
#pragma unroll
    for (int n = 0; n < C::kColumns; ++n) {
      const float(&d)[4] = acc[m / 2][n];
      sums[warp][(m * C::kColumns + n) * 32 + lane] =
          m % 2 == 0 ? make_float2(d[0], d[1]) : make_float2(d[2], d[3]);
    }
  }
  sync();
  __syncthreads();
#pragma unroll
  for (int from = 0; from < C::kPairs; from += C::kThreads) {
    const int pair = from + static_cast<int>(threadIdx.x);
    if (C::kPairs % C::kThreads != 0 && pair >= C::kPairs) break;
    const int token = pair / 32 / C::kColumns * 8 + pair % 32 / 4;
    if (first_token + token >= p.tokens) continue;
    float2 sum = sums[0][pair];
#pragma unroll
    for (int j = 1; j < C::kWarps; ++j) {
      const float2 more = sums[j][pair];
      sum.x += more.x;
      sum.y += more.y;
    }
    send(token, pair / 32 % C::kColumns * 8 + pair % 4 * 2, sum);
  }
}

// What thread e of a team loads before the wait for the previous launch.
struct Biases {
  uint32_t gate = 0;
  float choice = 0;
};
template <tile::TeamKind kKind>
__device__ __forceinline__ Biases load_biases(const Few& p, uint32_t e) {
  Biases out{.gate = tile::load_weight(static_cast<const Bf16*>(p.gate.bias) + e, p.gate.bias != nullptr)};
  if constexpr (tile::kTeamRules[kKind].by_score)
    if (p.bias) out.choice = p.bias[e];
  return out;
}

// Thread e of a team has its expert's logit. The team chooses and stores the result. Called after clear_team().
template <int kExperts, int kList, tile::TeamKind kKind>
__device__ __forceinline__ void choose(const Few& p, tile::TeamMemory<kExperts, kList>& m, int token,
                                       uint32_t e, float sum, float bias) {
  const auto sync = [] {
    if constexpr (kExperts == 32) {
      __syncwarp();
    } else {
      tile::sync_threads<kExperts>(1);
    }
  };
  const float logit = p.gate.y_bf16 ? __bfloat162float(__float2bfloat16_rn(sum)) : sum;
  const tile::TeamChoice chosen = tile::choose_by_team<kExperts, kList, kKind>(m, logit, bias, e, sync);
  if (chosen.slot < p.top_k) tile::leave_choice(m, chosen, e);
  sync();
  store_logit(p.gate, token, static_cast<int>(e), sum);
  if (e >= 32) return;
  const tile::Chosen of_slot = tile::weigh_by_team<kExperts, kList, kKind>(m, p.top_k, chosen.row.most, e);
  const uint32_t slot = token * p.shared.all + e;
  if (e < p.top_k) p.ids[slot] = of_slot.expert, p.weights[slot] = of_slot.weight * p.scale;
  tile::put_shared(p.shared, p.ids, p.weights, token, e);
}

// Grid: kSplit CTAs for each tile of experts, for each tile of tokens; then one CTA per token.
template <int kExperts, int kList, tile::TeamKind kKind, class C, bool kAnyRows>
__global__ void __launch_bounds__(C::kThreads) spread(const __grid_constant__ Few p) {
  static_assert(kExperts <= C::kThreads);
  constexpr int kTiles = kExperts / (8 * C::kColumns);
  const int token = static_cast<int>(blockIdx.x) - p.adders;
  if (token < 0) {
    const int split = blockIdx.x % C::kSplit, tile = blockIdx.x / C::kSplit;
    const int first_token = tile / kTiles * 8 * C::kRows, first_expert = tile % kTiles * 8 * C::kColumns;
    uint32_t* words = p.grid_words + (first_token * C::kSplit + split) * kExperts + first_expert;
    add_up<C, kAnyRows>(
        p.gate, p.zero, split, first_token, first_expert, [] {},
        [&](int t, int e, float2 part) { publish(words + t * C::kSplit * kExperts + e, part); });
    return;
  }
  __shared__ tile::TeamMemory<kExperts, kList> m;
  tile::release_next();
  const uint32_t e = threadIdx.x;
  if (e >= kExperts) {
    tile::wait_for_previous();
    return;
  }
  const Biases bias = load_biases<kKind>(p, e);
  tile::clear_team(m, e);
  tile::wait_for_previous();
  uint32_t* words = p.grid_words + token * C::kSplit * kExperts + e;
  uint32_t part[C::kSplit];
  bool all;
  do {
    all = true;
#pragma unroll
    for (int j = 0; j < C::kSplit; ++j) part[j] = load_word(words + j * kExperts);
#pragma unroll
    for (int j = 0; j < C::kSplit; ++j) all &= part[j] != 0;
  } while (!all);
  float sum = tile::weight_value<Bf16>(bias.gate);
#pragma unroll
  for (int j = 0; j < C::kSplit; ++j) sum += __uint_as_float(part[j]);
  choose<kExperts, kList, kKind>(p, m, token, e, sum, bias.choice);
#pragma unroll
  for (int j = 0; j < C::kSplit; ++j) words[j * kExperts] = 0;
}

// One cluster for all experts and each tile of tokens: CTA r computes split r of all sums, and chooses for token r of the
// tile. Grid: kSplit, tiles of tokens.
template <int kExperts, int kList, tile::TeamKind kKind, class C, bool kAnyRows>
__global__ void __launch_bounds__(C::kThreads) gathered(const __grid_constant__ Few p) {
  static_assert(kExperts == 8 * C::kColumns && kExperts <= C::kThreads && 8 * C::kRows <= C::kSplit);
  __shared__ tile::TeamMemory<kExperts, kList> m;
  __shared__ float received[C::kSplit][kExperts];
  __shared__ uint64_t all;
  const int rank = blockIdx.x, first_token = blockIdx.y * 8 * C::kRows, token = first_token + rank;
  const uint32_t e = threadIdx.x;
  const bool receives = rank < 8 * C::kRows && token < p.gate.tokens;
  if (e == 0 && receives) {
    tile::barrier_init(&all, 1);
    tile::barrier_visible();
    tile::barrier_expect(&all, sizeof received);
  }
  __syncwarp();
  tile::cluster_arrive();
  Biases bias;
  if (e < kExperts) {
    bias = load_biases<kKind>(p, e);
    tile::clear_team(m, e);
  }
  const uint32_t mine = tile::shared_address(&received[rank][0]), counter = tile::shared_address(&all);
  add_up<C, kAnyRows>(p.gate, p.zero, rank, first_token, 0, tile::cluster_wait,
                      [&](int t, int expert, float2 part) {
                        tile::store_remote(tile::remote_address(mine + expert * sizeof(float), t), part,
                                           tile::remote_address(counter, t));
                      });
  if (!receives || e >= kExperts) return;
  tile::barrier_wait(&all, 0);
  float sum = tile::weight_value<Bf16>(bias.gate);
#pragma unroll
  for (int j = 0; j < C::kSplit; ++j) sum += received[j][e];
  choose<kExperts, kList, kKind>(p, m, token, e, sum, bias.choice);
}

using Kernel = void (*)(Few);
template <size_t kIndex, bool kAnyRows>
constexpr Kernel kernel_at() {
  constexpr Instance i = kInstances[kIndex];
  using C = KnownCut<i.cut.rows, i.cut.columns, i.cut.split, i.cut.warps, i.cut.flight>;
  if constexpr (i.blocks == Blocks::kCluster) {
    return gathered<i.experts, i.list, i.kind, C, kAnyRows>;
  } else {
    return spread<i.experts, i.list, i.kind, C, kAnyRows>;
  }
}
// The kernels of each of kInstances: for 16-byte aligned rows of x, and for any rows.
struct Kernels {
  Kernel wide, any_rows;
};
template <size_t... kIndex>
constexpr std::array<Kernels, sizeof...(kIndex)> kernels(std::index_sequence<kIndex...>) {
  return {Kernels{kernel_at<kIndex, false>(), kernel_at<kIndex, true>()}...};
}
constexpr auto kKernels = kernels(std::make_index_sequence<std::size(kInstances)>());

Status Launcher::enqueue(const Problem& p, const RouterRoute::Args& a, Workspace, Stream stream) {
  const Instance& i = *instance_for(p);
  const Kernels& kernels = kKernels[static_cast<size_t>(&i - kInstances)];
  const auto tokens = static_cast<int>(p.route.tokens);
  const int tile_tokens = 8 * i.cut.rows, tiles = (tokens + tile_tokens - 1) / tile_tokens;
  const Few few{.gate = router_parameters(RouterRoute::gate(p), RouterRoute::gate(a)),
                .bias = a.bias.as<const float>(),
                .grid_words = queue_of(stream).grid_words,
                .adders = i.cut.split * i.experts / (8 * i.cut.columns) * tiles,
                .zero = 0,
                .top_k = static_cast<uint32_t>(p.route.top_k),
                .shared = tile::shared_slots(p.route),
                .scale = p.route.scale_here ? static_cast<float>(p.route.scale) : 1.f,
                .ids = a.ids.as<int32_t>(),
                .weights = a.weights.as<float>()};
  Launch how{.grid = {static_cast<unsigned>(few.adders + tokens), 1, 1},
             .block = {static_cast<unsigned>(32 * i.cut.warps), 1, 1}};
  if (i.blocks == Blocks::kCluster) {
    const auto split = static_cast<unsigned>(i.cut.split);
    how.grid = {split, static_cast<unsigned>(tiles), 1};
    how.cluster = {split, 1, 1};
  }
  return launch(router_route_fewtokens_sm90.name, few.gate.x_wide ? kernels.wide : kernels.any_rows, how,
                stream, few);
}

}  // namespace

}  // namespace sluice::cuda
#endif
