// Router GEMM and routing of few tokens in one launch. Most CTAs compute partial
// logits; one CTA per token adds them up and chooses the experts (tile/few_tokens.cuh).
//
// A partial logit is a word of Queue::grid_words, which is zero until the sum is written. The choosing CTA
// polls these words, not a counter, so only one store and one load are between a sum and the choice. It adds
// the partial logits in the order of k and resets the words to zero. CTAs that wait must not occupy the SMs
// that the other CTAs need: they are the last CTAs of the grid, at most 64, and fewer than one per SM. For up
// to 32 experts, a cluster does the same through shared memory. A norm before the router needs no launch of
// its own. The inverse RMS of a row factors out of its logits, so the partial sums of squares of a row are
// passed on with its partial logits. Threads of the choosing CTA that have no expert write the normalized row.
#pragma once
#include "backends/cuda/launch.h"
#include "backends/cuda/router.h"
#include "backends/cuda/router/router_route_fewtokens.h"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/few_tokens.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/mma.cuh"
#include "backends/cuda/tile/operand.cuh"
#include "backends/cuda/tile/shared_slots.cuh"

namespace sluice::cuda::few {

using Bf16 = __nv_bfloat16;

// kNormed: x is multiplied by the norm's weight before the products,
// and the logits are multiplied by the row's inverse RMS at the end.
enum class Input : uint8_t { kAnyRows, kWideRows, kNormed };

struct Norm {
  const Bf16* weight;
  Bf16* normed;
  int64_t stride;  // elements between rows of `normed`
  float eps;
};

struct Few {
  RouterParameters gate;
  const float* bias;     // added to the scores before the choice, not to the logits
  uint32_t* grid_words;  // [tokens, splits, experts]: partial logits
  // number of CTAs that compute partial logits; the choosing CTAs come after them in the grid
  int adders;
  uint32_t zero;  // always 0, but unknown to the compiler
  uint32_t top_k;
  tile::SharedSlots shared;
  float scale;
  int32_t* ids;
  float* weights;
  Norm norm;
};

// A Cut as a compile-time value.
template <int kRows_, int kColumns_, int kSplit_, int kWarps_, int kFlight_>
struct KnownCut {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kSplit = kSplit_, kWarps = kWarps_,
                       kFlight = kFlight_;
  static constexpr int kThreads = 32 * kWarps, kPairs = kRows * kColumns * 32;
};

// The word for a partial sum, never 0 ("not written"): +0 becomes -0, which does not change the total.
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

// A warp's operands in a tile of partial logits; they are all loaded at once. first: this
// lane's first element in a row. left: number of elements from there to the end of the row.
template <class C>
struct Operands {
  tile::Eight<Bf16> w[C::kFlight][C::kColumns], x[C::kFlight][C::kRows], scale[C::kFlight];

  // Loads weights; called before the wait for the previous launch.
  template <Input kInput>
  __device__ __forceinline__ void load_w(const Few& few, int first_expert, int g, int first, int left) {
    const RouterParameters& p = few.gate;
#pragma unroll
    for (int i = 0; i < C::kFlight; ++i) {
#pragma unroll
      for (int n = 0; n < C::kColumns; ++n)
        tile::load_weights(
            w[i][n],
            static_cast<const Bf16*>(p.w) + ((first_expert + 8 * n + g) * p.hidden + first + i * kUnit),
            i * kUnit < left);
      if constexpr (kInput == Input::kNormed)
        tile::load_weights(scale[i], few.norm.weight + (first + i * kUnit), i * kUnit < left);
    }
  }
  template <Input kInput>
  __device__ __forceinline__ void load_x(const RouterParameters& p, int first_token, int g, int first,
                                         int left) {
#pragma unroll
    for (int i = 0; i < C::kFlight; ++i) {
#pragma unroll
      for (int m = 0; m < C::kRows; ++m)
        tile::load_inputs(x[i][m],
                          static_cast<const Bf16*>(p.x) +
                              (min(first_token + 8 * m + g, p.tokens - 1) * p.x_stride + first + i * kUnit),
                          i * kUnit < left, kInput != Input::kAnyRows || p.x_wide);
    }
  }
  // A zero that depends on all loads, so no sum starts before the last load has been issued.
  // Without it the compiler moves each load next to its use, which serializes the loads.
  __device__ __forceinline__ float zero_after_loads(uint32_t zero) const {
    uint32_t any = 0;
#pragma unroll
    for (int i = 0; i < C::kFlight; ++i) {
#pragma unroll
      for (int m = 0; m < C::kRows; ++m) any |= x[i][m].word[0].x;
    }
    return __uint_as_float(any & zero);
  }
  // Multiplies x by the norm's weight, and stores the warp's sums of squares of x.
  __device__ __forceinline__ void scale_x(float (&squares)[8 * C::kRows], int g, int c) {
#pragma unroll
    for (int m = 0; m < C::kRows; ++m) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < C::kFlight; ++i) sum += tile::scale_by(x[i][m], scale[i]);
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (c == 0) squares[8 * m + g] = sum;
    }
  }
  // Computes the warp's partial sums. They are stored as pairs in the order in which the
  // lanes of an mma hold them: pair ((token / 8) * kColumns + expert / 8) * 32 + lane.
  __device__ __forceinline__ void multiply(float2 (&sums)[C::kPairs], float zero, int lane) const {
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
#pragma unroll
    for (int m = 0; m < C::kRows; ++m) {
#pragma unroll
      for (int n = 0; n < C::kColumns; ++n) {
        const float(&d)[4] = acc[m / 2][n];
        sums[(m * C::kColumns + n) * 32 + lane] =
            m % 2 == 0 ? make_float2(d[0], d[1]) : make_float2(d[2], d[3]);
      }
    }
  }
};

// Adds up the warps' sums of a tile whose first token is `first_token`, and sends the totals.
template <class C, class Send>
__device__ __forceinline__ void send_sums(const float2 (&sums)[C::kWarps][C::kPairs], int first_token,
                                          int tokens, Send send) {
#pragma unroll
  for (int from = 0; from < C::kPairs; from += C::kThreads) {
    const int pair = from + static_cast<int>(threadIdx.x);
    if (C::kPairs % C::kThreads != 0 && pair >= C::kPairs) break;
    const int token = pair / 32 / C::kColumns * 8 + pair % 32 / 4;
    if (first_token + token >= tokens) continue;
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

// Computes a CTA's partial logits of a tile. Calls send(token in the tile, expert in the tile, partial logits of two adjacent
// experts), and with a norm send_squares(token in the tile, partial sum of squares). All threads call sync() before any send.
template <class C, Input kInput, class Sync, class Send, class SendSquares>
__device__ __forceinline__ void add_up(const Few& few, int split, int first_token, int first_expert,
                                       Sync sync, Send send, SendSquares send_squares) {
  constexpr bool kNormed = kInput == Input::kNormed;
  const RouterParameters& p = few.gate;
  __shared__ float2 sums[C::kWarps][C::kPairs];
  __shared__ float squares[kNormed ? C::kWarps : 1][8 * C::kRows];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int first = (split * C::kWarps + warp) * C::kFlight * kUnit + 8 * c;
  const int left = p.hidden - first;
  Operands<C> of;
  of.template load_w<kInput>(few, first_expert, g, first, left);
  tile::release_next();
  tile::wait_for_previous();
  of.template load_x<kInput>(p, first_token, g, first, left);
  const float zero = of.zero_after_loads(few.zero);
  if constexpr (kNormed) of.scale_x(squares[warp], g, c);
  of.multiply(sums[warp], zero, lane);
  sync();
  __syncthreads();
  send_sums<C>(sums, first_token, p.tokens, send);
  if constexpr (kNormed) {
    const int token = static_cast<int>(threadIdx.x);
    if (token >= 8 * C::kRows || first_token + token >= p.tokens) return;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < C::kWarps; ++j) sum += squares[j][token];
    send_squares(token, sum);
  }
}

// The biases of expert e, which thread e of a team loads before the wait for the previous launch.
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

// The logit: the sum of its partial sums, in order; with a norm, times the row's inverse RMS.
template <Input kInput, int kSplit>
__device__ __forceinline__ float logit_of(const Biases& bias, const float (&part)[kSplit], float inverse) {
  const float gate = tile::weight_value<Bf16>(bias.gate);
  float sum = kInput == Input::kNormed ? 0 : gate;
#pragma unroll
  for (int j = 0; j < kSplit; ++j) sum += part[j];
  return kInput == Input::kNormed ? fmaf(sum, inverse, gate) : sum;
}

// Thread e passes the logit of expert e. The team chooses experts and stores the result. Call clear_team() first.
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

// The inverse RMS of a row, from its partial sums of squares.
template <int kSplit>
__device__ __forceinline__ float inverse_of(const Few& p, const float (&part)[kSplit]) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kSplit; ++j) sum += part[j];
  return 1.f / sqrtf(sum / static_cast<float>(p.gate.hidden) + p.norm.eps);
}

// The threads of a CTA that do not choose write the normalized row, eight
// columns at a time. This is thread `first` of kThreads. The constructor
// loads x before the sums of squares arrive; write() gets the inverse RMS.
template <int kThreads, int64_t kHiddenMax>
class NormedRow {
 public:
  __device__ __forceinline__ NormedRow(const Few& p, int token, int first)
      : p_(p), token_(token), first_(first) {
    const Bf16* const x = static_cast<const Bf16*>(p.gate.x) + token * p.gate.x_stride;
    for_each([&](int i, int column) {
      tile::load(x_[i], x + column);
      tile::load(weight_[i], p.norm.weight + column);
    });
  }
  __device__ __forceinline__ void write(float inverse) const {
    for_each([&](int i, int column) {
      float out[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) out[k] = x_[i][k] * inverse * weight_[i][k];
      tile::store(p_.norm.normed + token_ * p_.norm.stride + column, out);
    });
  }

 private:
  static constexpr int kEach = static_cast<int>((kHiddenMax / 8 + kThreads - 1) / kThreads);

  template <class F>
  __device__ __forceinline__ void for_each(F f) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (const int column = (i * kThreads + first_) * 8; column < p_.gate.hidden) f(i, column);
  }

  const Few& p_;
  int token_, first_;
  float x_[kEach][8], weight_[kEach][8];
};

template <int kSplit>
__device__ __forceinline__ void wait_for_words(float (&part)[kSplit], const uint32_t* words, int apart) {
  bool all;
  do {
    all = true;
    uint32_t bits[kSplit];
#pragma unroll
    for (int j = 0; j < kSplit; ++j) bits[j] = load_word(words + j * apart);
#pragma unroll
    for (int j = 0; j < kSplit; ++j) all &= bits[j] != 0, part[j] = __uint_as_float(bits[j]);
  } while (!all);
}
template <int kSplit>
__device__ __forceinline__ void forget_words(uint32_t* words, int apart) {
#pragma unroll
  for (int j = 0; j < kSplit; ++j) words[j * apart] = 0;
}

// Grid: for each tile of tokens, for each tile of experts, kSplit CTAs; then one CTA per token.
template <int kExperts, int kList, tile::TeamKind kKind, class C, Input kInput>
__global__ void __launch_bounds__(C::kThreads) spread(const __grid_constant__ Few p) {
  static_assert(kExperts <= C::kThreads);
  constexpr bool kNormed = kInput == Input::kNormed;
  constexpr int kTiles = kExperts / (8 * C::kColumns), kNorming = C::kThreads - kExperts;
  const int token = static_cast<int>(blockIdx.x) - p.adders;
  // The sums of squares, [tokens, splits, kSquareWords], are after the partial logits of all tokens.
  uint32_t* const squares = p.grid_words + p.gate.tokens * C::kSplit * kExperts;
  if (token < 0) {
    const int split = blockIdx.x % C::kSplit, tile = blockIdx.x / C::kSplit;
    const int first_token = tile / kTiles * 8 * C::kRows, first_expert = tile % kTiles * 8 * C::kColumns;
    uint32_t* words = p.grid_words + (first_token * C::kSplit + split) * kExperts + first_expert;
    add_up<C, kInput>(
        p, split, first_token, first_expert, [] {},
        [&](int t, int e, float2 part) { publish(words + t * C::kSplit * kExperts + e, part); },
        [&](int t, float part) {
          if (first_expert == 0)
            publish(squares + ((first_token + t) * C::kSplit + split) * kSquareWords,
                    make_float2(part, part));
        });
    return;
  }
  tile::release_next();
  __shared__ tile::TeamMemory<kExperts, kList> m;
  const uint32_t e = threadIdx.x;
  uint32_t* const of_row = squares + token * C::kSplit * kSquareWords;
  if (e >= kExperts) {
    tile::wait_for_previous();
    if constexpr (kNormed) {
      const NormedRow<kNorming, int64_t{kUnit} * C::kSplit * C::kWarps * C::kFlight> row(
          p, token, static_cast<int>(e) - kExperts);
      float part[C::kSplit];
      wait_for_words(part, of_row + 1, kSquareWords);
      row.write(inverse_of(p, part));
      tile::sync_threads<kNorming>(2);  // all of these threads have read the words
      if (e == kExperts) forget_words<C::kSplit>(of_row + 1, kSquareWords);
    }
    return;
  }
  const Biases bias = load_biases<kKind>(p, e);
  tile::clear_team(m, e);
  tile::wait_for_previous();
  uint32_t* words = p.grid_words + token * C::kSplit * kExperts + e;
  float part[C::kSplit], inverse = 1;
  wait_for_words(part, words, kExperts);
  if constexpr (kNormed) {
    float of_squares[C::kSplit];
    wait_for_words(of_squares, of_row, kSquareWords);
    inverse = inverse_of(p, of_squares);
  }
  choose<kExperts, kList, kKind>(p, m, token, e, logit_of<kInput>(bias, part, inverse), bias.choice);
  forget_words<C::kSplit>(words, kExperts);
  // choose() has synchronized the threads that read these words.
  if (kNormed && e == 0) forget_words<C::kSplit>(of_row, kSquareWords);
}

// One cluster computes all experts of a tile of tokens: CTA r computes split r of
// all sums, then chooses for token r of the tile. Grid: kSplit, tiles of tokens.
template <int kExperts, int kList, tile::TeamKind kKind, class C, Input kInput>
__global__ void __launch_bounds__(C::kThreads) gathered(const __grid_constant__ Few p) {
  static_assert(kExperts == 8 * C::kColumns && kExperts <= C::kThreads && 8 * C::kRows <= C::kSplit);
  constexpr bool kNormed = kInput == Input::kNormed;
  __shared__ tile::TeamMemory<kExperts, kList> m;
  __shared__ float received[C::kSplit][kExperts], squares[C::kSplit];
  __shared__ uint64_t all;
  const int rank = blockIdx.x, first_token = blockIdx.y * 8 * C::kRows, token = first_token + rank;
  const uint32_t e = threadIdx.x;
  const bool receives = rank < 8 * C::kRows && token < p.gate.tokens;
  if (e == 0 && receives) {
    tile::barrier_init(&all, 1);
    tile::barrier_visible();
    tile::barrier_expect(&all, sizeof received + (kNormed ? sizeof squares : 0));
  }
  __syncwarp();
  tile::cluster_arrive();
  Biases bias;
  if (e < kExperts) {
    bias = load_biases<kKind>(p, e);
    tile::clear_team(m, e);
  }
  const uint32_t mine = tile::shared_address(&received[rank][0]), counter = tile::shared_address(&all),
                 my_squares = tile::shared_address(&squares[rank]);
  add_up<C, kInput>(
      p, rank, first_token, 0, tile::cluster_wait,
      [&](int t, int expert, float2 part) {
        tile::store_remote(tile::remote_address(mine + expert * sizeof(float), t), part,
                           tile::remote_address(counter, t));
      },
      [&](int t, float part) {
        tile::store_remote(tile::remote_address(my_squares, t), part, tile::remote_address(counter, t));
      });
  if (!receives) return;
  if (e >= kExperts) {
    if constexpr (kNormed) {
      const NormedRow<C::kThreads - kExperts, int64_t{kUnit} * C::kSplit * C::kWarps * C::kFlight> row(
          p, token, static_cast<int>(e) - kExperts);
      tile::barrier_wait(&all, 0);
      row.write(inverse_of(p, squares));
    }
    return;
  }
  tile::barrier_wait(&all, 0);
  float part[C::kSplit];
#pragma unroll
  for (int j = 0; j < C::kSplit; ++j) part[j] = received[j][e];
  const float inverse = kNormed ? inverse_of(p, squares) : 1.f;
  choose<kExperts, kList, kKind>(p, m, token, e, logit_of<kInput>(bias, part, inverse), bias.choice);
}

// The kernel for kInstances[kIndex].
template <size_t kIndex, Input kInput>
constexpr auto kernel_of() {
  constexpr Instance i = kInstances[kIndex];
  using C = KnownCut<i.cut.rows, i.cut.columns, i.cut.split, i.cut.warps, i.cut.flight>;
  if constexpr (i.blocks == Blocks::kCluster) {
    return gathered<i.experts, i.list, i.kind, C, kInput>;
  } else {
    return spread<i.experts, i.list, i.kind, C, kInput>;
  }
}

// The parameters of an instance's kernel for a problem.
inline Few few_of(const RouterRoute::Problem& p, const RouterRoute::Args& a, const Instance& i,
                  Stream stream) {
  const auto tokens = static_cast<int>(p.route.tokens);
  const int tile_tokens = 8 * i.cut.rows, tiles = (tokens + tile_tokens - 1) / tile_tokens;
  return {.gate = router_parameters(RouterRoute::gate(p), RouterRoute::gate(a)),
          .bias = a.bias.as<const float>(),
          .grid_words = queue_of(stream).grid_words + kGridWordsBytes / sizeof(uint32_t),
          .adders = i.cut.split * i.experts / (8 * i.cut.columns) * tiles,
          .zero = 0,
          .top_k = static_cast<uint32_t>(p.route.top_k),
          .shared = tile::shared_slots(p.route),
          .scale = p.route.scale_here ? static_cast<float>(p.route.scale) : 1.f,
          .ids = a.ids.as<int32_t>(),
          .weights = a.weights.as<float>(),
          .norm = {}};
}
inline Launch launch_of(const Few& few, const Instance& i) {
  const int tile_tokens = 8 * i.cut.rows, tiles = (few.gate.tokens + tile_tokens - 1) / tile_tokens;
  Launch how{.grid = {static_cast<unsigned>(few.adders + few.gate.tokens), 1, 1},
             .block = {static_cast<unsigned>(32 * i.cut.warps), 1, 1}};
  if (i.blocks == Blocks::kCluster) {
    const auto split = static_cast<unsigned>(i.cut.split);
    how.grid = {split, static_cast<unsigned>(tiles), 1};
    how.cluster = {split, 1, 1};
  }
  return how;
}

}  // namespace sluice::cuda::few
