// The output layer of greedy decoding: tiles of logits (linear_tile.cuh) that are not written to
// memory. For 64 logits of a row a CTA writes one peak: the largest logit, its index, and the sum
// of exponentials relative to it. A second launch reduces the peaks of a row to the row's token.
//
// Wins    steps of greedy rows, because logits (four bytes each) are neither written nor read: a step of gpt-oss-20b on an H100 takes
//         1598 us instead of 1607 at one sequence, 8962 us instead of 9089 at 256 (docs/lab/cuda-step-launches.md).
// Loses   never: it computes greedy rows only. For other rows, Linear and Sample run as separate kernels.
// Limits  see supports() below. A sum is added up from the first k to the last, whatever the tile, as in linear_tile_sm90.
// Bytes   w once for each tile of rows; 16 bytes per 64 features of a row, written and read.
// Source  original; the contract is ops/fused/linear_argmax.h.
#include <iterator>

#include "backends/cuda/linear/linear_tile.h"
#include "ops/fused/linear_argmax.h"

namespace sluice::cuda {
namespace {

using Problem = LinearArgmax::Problem;

constexpr int64_t kPeakFeatures = 64, kPeakBytes = 16;

// The compiled tiles, a subset of kLinearTiles.
constexpr LinearTileKind kPeakTiles[] = {{2, 256}, {2, 192}, {2, 128}, {2, 64}, {1, 64}, {1, 32}, {1, 16}};
constexpr int place_of_tile(const LinearTileKind& kind) {
  for (int i = 0; i < static_cast<int>(std::size(kPeakTiles)); ++i)
    if (kPeakTiles[i].groups == kind.groups && kPeakTiles[i].n == kind.n) return i;
  return -1;
}

size_t peaks_bytes(const Problem& p) {
  return static_cast<size_t>(linear_parts(p.features, kPeakFeatures) * p.tokens * kPeakBytes);
}

Refusal supports(const Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_linear_operands(r, LinearArgmax::linear(p), d);
  need_few_rows(r, LinearArgmax::linear(p), 4096, "one CTA reduces each row");
  return r;
}

std::vector<Config> configs(const Problem& p, const DeviceInfo& d) {
  // Time of the second launch and of its reads of the peaks. Not fitted.
  const double answer_us = 1.5 + 2.0 * static_cast<double>(peaks_bytes(p)) / d.mem_bytes_per_us;
  std::vector<Config> out;
  for (Config& c : linear_tile_configs(LinearArgmax::linear(p), d)) {
    const auto tile = LinearTileLaunch::of(c.launches[0]);
    if (place_of_tile(kLinearTiles[tile.kind]) < 0) continue;
    c.cost_us += answer_us;
    c.workspace_bytes = peaks_bytes(p);
    out.push_back(std::move(c));
  }
  return out;
}

std::string launch_text(const Problem& p, const KernelLaunch& launch) {
  return linear_tile_text(LinearArgmax::linear(p), launch);
}

struct Launcher {
  static Status enqueue(const Problem&, std::span<const KernelLaunch>, const LinearArgmax::Args&, Workspace,
                        Stream);
};

}  // namespace

extern const Candidate<LinearArgmax> linear_argmax_tile_sm90 = {
    .name = "cuda.linear_argmax.tile_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .enqueue_config = enqueue_config_of<LinearArgmax, Launcher>(),
    .launch_text = launch_text,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include <array>
#include <cfloat>
#include <utility>

#include "backends/cuda/linear/linear_tile.cuh"
#include "backends/cuda/sampling/sample_weights.cuh"

namespace sluice::cuda {
namespace {

using draw::kLog2E, draw::power_of_two;

// The peak of some logits of a row: the largest, its index (the lowest if several are equal), and
// the sum of e^(logit - largest). NaN and features out of bounds count as -inf and add nothing.
struct alignas(16) Peak {
  float largest;
  int at;
  float sum;
};
static_assert(sizeof(Peak) == kPeakBytes);

// e^(logit - largest); `largest` may be -inf.
__device__ __forceinline__ float beside(float logit, float largest) {
  return power_of_two((logit - fmaxf(largest, -FLT_MAX)) * kLog2E);
}
__device__ __forceinline__ Peak peak_of(float first, int at, float second, int second_at) {
  first = fmaxf(first, -INFINITY), second = fmaxf(second, -INFINITY);
  const bool later = second > first;
  const float largest = later ? second : first, other = later ? first : second;
  return {largest, later ? second_at : at, largest > -INFINITY ? 1.f + beside(other, largest) : 0.f};
}
// merged(a, b) and merged(b, a) have the same bits, so two lanes that exchange peaks get the same result.
__device__ __forceinline__ Peak merged(const Peak& a, const Peak& b) {
  const bool takes_b = b.largest > a.largest || (b.largest == a.largest && b.at < a.at);
  const float largest = fmaxf(a.largest, b.largest), least = fminf(a.largest, b.largest);
  const float of_largest = takes_b ? b.sum : a.sum, of_least = takes_b ? a.sum : b.sum;
  return {largest, takes_b ? b.at : a.at, fmaf(of_least, beside(least, largest), of_largest)};
}
__device__ __forceinline__ Peak exchanged(const Peak& p, int mask) {
  return {__shfl_xor_sync(~0u, p.largest, mask), __shfl_xor_sync(~0u, p.at, mask),
          __shfl_xor_sync(~0u, p.sum, mask)};
}

// Reduces the peaks of kCount rows over the eight lanes that differ in bits 2 to 4 of their index. Every
// exchange halves the rows that a lane keeps, so lane l ends with row l / 4 (kCount = 8) or l / 8 (kCount = 4).
template <int kCount>
__device__ __forceinline__ Peak fold(Peak (&peak)[kCount]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int count = kCount;
#pragma unroll
  for (int mask = 16; mask >= 4; mask /= 2) {
    if (count == 1) {
      peak[0] = merged(peak[0], exchanged(peak[0], mask));
      continue;
    }
    count /= 2;
    const bool high = (lane & mask) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= count) continue;
      const Peak keep = high ? peak[i + count] : peak[i], give = high ? peak[i] : peak[i + count];
      peak[i] = merged(keep, exchanged(give, mask));
    }
  }
  return peak[0];
}

// Converts a warpgroup's sums to peaks, 32 rows at a time (16 for the narrowest tile).
template <class C>
struct PeakFinish {
  static constexpr int kOfLane = C::kN >= 32 ? 8 : 4, kRows = 4 * kOfLane, kRounds = C::kN / kRows;
  static_assert(C::kN % kRows == 0);
  // Peaks of the four warps of a warpgroup. Rounds use two buffers alternately.
  struct PeakBuffer {
    float largest[4][kRows];
    int at[4][kRows];
    float sum[4][kRows];
  };
  static_assert(2 * sizeof(PeakBuffer) <= C::kStagingBytes);

  static __device__ __forceinline__ void run(const float (&d)[C::kN / 2], const LinearTilePlace& to,
                                             const LinearOutput& out, PeakBuffer* buffers, Peak* peaks,
                                             int barrier) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int of_block = 16 * warp + lane / 4, feature = to.feature + of_block;
    const bool first_in = feature < out.features, second_in = feature + 8 < out.features;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (to.token + round * kRows >= out.tokens) break;
      Peak mine[kOfLane];
#pragma unroll
      for (int q = 0; q < kOfLane; ++q) {
        const int of_d = 4 * (round * kOfLane / 2 + q / 2) + q % 2;
        mine[q] = peak_of(first_in ? d[of_d] : -INFINITY, of_block, second_in ? d[of_d + 2] : -INFINITY,
                          of_block + 8);
      }
      const Peak own = fold(mine);
      const int q = lane * kOfLane / 32, row = 8 * (q / 2) + 2 * (lane % 4) + q % 2;
      PeakBuffer& buffer = buffers[round % 2];
      buffer.largest[warp][row] = own.largest, buffer.at[warp][row] = own.at, buffer.sum[warp][row] = own.sum;
      // One barrier per round is enough: a thread reads a buffer before it arrives here the next time, and that buffer is written only after this arrival.
      tile::sync_threads<128>(barrier);
      const int token = to.token + round * kRows + lane;
      if (warp != round % 4 || lane >= kRows || token >= out.tokens) continue;
      Peak all{buffer.largest[0][lane], buffer.at[0][lane], buffer.sum[0][lane]};
#pragma unroll
      for (int w = 1; w < 4; ++w)
        all = merged(all, {buffer.largest[w][lane], buffer.at[w][lane], buffer.sum[w][lane]});
      all.at += to.feature;
      peaks[static_cast<int64_t>(to.feature / kPeakFeatures) * out.tokens + token] = all;
    }
    tile::sync_threads<128>(barrier);  // the next tile begins with the first buffer
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kNarrow ? 2 : 1)
    linear_peaks(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                 const __grid_constant__ LinearTileParameters p, Peak* peaks) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const int warp = tile::uniform(static_cast<int>(threadIdx.x) / 32);
  constexpr int kProducer = C::kConsumers / 32;
  tile::release_next();
  if (warp == kProducer) {
    tile::prefetch_map(w);
    tile::prefetch_map(x);
  }
  const uint32_t base = tile::shared_address(shared);
  linear_init_ring<C>(p, base, warp);
  tile::barrier_visible();
  __syncthreads();
  if (warp >= kProducer) {
    if constexpr (C::kMovesRegisters) tile::keep_registers<C::kProducerRegisters>();
    if (warp == kProducer) linear_produce<C>(w, x, p, base);
  } else {
    if constexpr (C::kMovesRegisters) tile::take_registers<C::kConsumerRegisters>();
    const int group = tile::uniform(warp / 4);
    using PeakBuffer = typename PeakFinish<C>::PeakBuffer;
    auto* const buffers = reinterpret_cast<PeakBuffer*>(shared + p.at.staging + group * C::kStagingBytes);
    const LinearTileShare mine(p);
    tile::RingPlace place;
    tile::wait_for_previous();
#pragma unroll 1
    for (int tile = mine.tile; tile < p.tiles; tile += mine.stride) {
      LinearTilePlace to = linear_tile_place<C>(p, tile);
      to.feature += group * 64;
      float d[C::kN / 2];
      linear_multiply<C>(d, p, base, group, mine.steps, place);
      if (to.feature < p.out.features) PeakFinish<C>::run(d, to, p.out, buffers, peaks, 1 + group);
    }
  }
}

// Reduces the peaks of a row (`tokens` apart) to the row's token and log probability, with one CTA per row.
constexpr int kAnswerThreads = 512, kAnswerWarps = kAnswerThreads / 32, kAtOnce = 8;
__global__ void __launch_bounds__(kAnswerThreads)
    answer_of_peaks(const Peak* peaks, int blocks, int tokens, int32_t* token, float* logprob) {
  __shared__ uint64_t place_of_warp[kAnswerWarps];
  __shared__ double sum_of_warp[kAnswerWarps];
  const int row = static_cast<int>(blockIdx.x), own = static_cast<int>(threadIdx.x), lane = own % 32;
  tile::release_next();
  tile::wait_for_previous();
  uint64_t place = draw::place_of(-INFINITY, 0);
  float largest = -INFINITY, sum = 0;
  for (int block = own; block < blocks; block += kAtOnce * kAnswerThreads) {
    Peak peak[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = block + i * kAnswerThreads;
      peak[i] = at < blocks ? peaks[static_cast<int64_t>(at) * tokens + row] : Peak{-INFINITY, 0, 0};
    }
    float most = largest;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) most = fmaxf(most, peak[i].largest);
    sum *= beside(largest, most);
    largest = most;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      place = min(place, draw::place_of(peak[i].largest, peak[i].at));
      sum = fmaf(peak[i].sum, beside(peak[i].largest, most), sum);
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) place = min(place, __shfl_xor_sync(~0u, place, step));
  if (lane == 0) place_of_warp[own / 32] = place;
  __syncthreads();
  for (int w = 0; w < kAnswerWarps; ++w) place = min(place, place_of_warp[w]);
  const float of_row = draw::logit_at(place);
  double share = static_cast<double>(sum * beside(largest, of_row));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) share += __shfl_xor_sync(~0u, share, step);
  if (lane == 0) sum_of_warp[own / 32] = share;
  __syncthreads();
  if (own != 0) return;
  double total = 0;
  for (int w = 0; w < kAnswerWarps; ++w) total += sum_of_warp[w];
  const bool any = of_row > -INFINITY;
  token[row] = any ? draw::id_at(place) : 0;
  logprob[row] = any && of_row < INFINITY ? static_cast<float>(-log(total)) : NAN;
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, LinearTileParameters, Peak*);
template <size_t... kIndex>
constexpr std::array<Kernel, sizeof...(kIndex)> kernels(std::index_sequence<kIndex...>) {
  return {linear_peaks<LinearTiles<kPeakTiles[kIndex].groups, kPeakTiles[kIndex].n>>...};
}
constexpr auto kKernels = kernels(std::make_index_sequence<std::size(kPeakTiles)>());

Status Launcher::enqueue(const Problem& p, std::span<const KernelLaunch> launches,
                         const LinearArgmax::Args& a, Workspace workspace, Stream stream) {
  if (p.tokens == 0) return {};
  const auto tile = LinearTileLaunch::of(launches[0]);
  const LinearTileKind& kind = kLinearTiles[tile.kind];
  const Linear::Problem linear = LinearArgmax::linear(p);
  CUtensorMap w, x;
  SLUICE_TRY(tile::map_rows(w, a.w, kind.features()));
  SLUICE_TRY(tile::map_rows(x, a.x, kind.n));
  LinearOutput out{};  // the kernel uses only the sizes
  out.tokens = static_cast<int>(p.tokens), out.features = static_cast<int>(p.features);
  const LinearTileParameters parameters = linear_tile_parameters(linear, tile, out);
  auto* const peaks = reinterpret_cast<Peak*>(workspace.data);
  SLUICE_TRY(launch(linear_argmax_tile_sm90.name, kKernels[static_cast<size_t>(place_of_tile(kind))],
                    linear_tile_how(tile, parameters), stream, w, x, parameters, peaks));
  const Launch answer{.grid = {static_cast<unsigned>(p.tokens), 1, 1}, .block = {kAnswerThreads, 1, 1}};
  return launch(linear_argmax_tile_sm90.name, answer_of_peaks, answer, stream, peaks,
                static_cast<int>(linear_parts(p.features, kPeakFeatures)), static_cast<int>(p.tokens),
                a.token.as<int32_t>(), a.logprob.as<float>());
}

}  // namespace
}  // namespace sluice::cuda
#endif
