// Sampling: a cluster of eight CTAs samples one row. The row is in their shared memory, so logits are read from memory once.
//
// Passes over a row: one finds its largest logit (while the row is loaded), one adds up e^x. A row
// that is not greedy has more: one builds a histogram of weights over depth (sample_find.cuh), as
// deep as weights matter, and one lists tokens for each cut: top_k, top_p, the sample.
//
// Wins    always: it is the only kernel of Sample.
// Loses   to linear_argmax_tile_sm90 in steps whose rows are all greedy.
// Limits  rows < 2^27, because a grid has eight CTAs per row. Rows that exceed the shared memory of eight
//         CTAs (about 420000 logits in f32) are read once per pass.
// Source  original; the contract is ops/sample.h.
#include "backends/cuda/card.h"
#include "ops/sample.h"

namespace sluice::cuda {
namespace {

constexpr int64_t kBlocksOfRow = 8;

Refusal supports(const Sample::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  r.need(p.rows < (int64_t{1} << 27), "rows < 2^27 (eight CTAs per row in a grid)", "rows", p.rows);
  return r;
}

// A model that is not fitted: the passes of a row times the number of waves. In a wave every SM has two CTAs.
double cost_us(const Sample::Problem& p, const DeviceInfo& d) {
  const double waves = std::ceil(static_cast<double>(p.rows) * kBlocksOfRow / (2.0 * d.cores));
  const double passes = 4e-5 * static_cast<double>(p.vocab);
  return kRampUs + 4 + waves * (1 + passes) + Sample::bytes(p) / d.mem_bytes_per_us;
}

struct Launcher {
  static Status enqueue(const Sample::Problem&, const Sample::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<Sample> sample_cluster_sm90 = {
    .name = "cuda.sample.cluster_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<Sample>,
    .enqueue = enqueue_of<Sample, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/sampling/sample_find.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "ops/score_math.h"

namespace sluice::cuda {
namespace {

using namespace draw;

struct Parameters {
  const void* logits;
  int64_t stride;                            // elements between rows
  const float *temperature, *top_p, *min_p;  // null, and so are the other parameters: every row is greedy
  const int32_t* top_k;
  const int64_t *seed, *step;
  int32_t* token;
  float* logprob;
  int vocab;
  int slice;  // logits per CTA, a multiple of 16 bytes
  int wide;   // rows begin at multiples of 16 bytes
};

// A row's parameters as given. They are loaded before the row and interpreted after it.
struct Given {
  float temperature, top_p, min_p;
  int top_k;
  int64_t seed, step;
};
__device__ __forceinline__ Given given_to(const Parameters& p, int64_t row) {
  if (!p.temperature) return {.temperature = 0, .top_p = 1, .min_p = 0, .top_k = 0, .seed = 0, .step = 0};
  return {p.temperature[row], p.top_p[row], p.min_p[row], p.top_k[row], p.seed[row], p.step[row]};
}

// The parameters that sample one row.
struct Sampler {
  float temperature, top_p, min_p;
  int top_k;  // 0: off
  double u;
  bool by_order;  // the first token in sampling order is sampled, whatever its weight
};
__device__ __forceinline__ Sampler sampler_of(const Given& g, int vocab) {
  return {.temperature = g.temperature,
          .top_p = g.top_p,
          .min_p = g.min_p,
          .top_k = g.top_k > 0 && g.top_k < vocab ? g.top_k : 0,
          .u = uniform_of(static_cast<uint64_t>(g.seed), static_cast<uint64_t>(g.step)),
          .by_order = !(g.temperature > 0) || g.top_k == 1 || g.top_p <= 0};
}

// The sums of a pass over a row.
struct Sums {
  double plain, tempered;  // sum of e^(logit - largest); sum of weights
  uint64_t first;          // place_of() the first token in sampling order; set only if that token is sampled
};

enum class Adds : uint8_t { kPlain, kWeights, kBoth };  // kPlain also looks for the first token
template <Adds kAdds, class Row>
__device__ __forceinline__ Sums sums_of(const Row& row, const Temper& t, float largest) {
  Sums s{.plain = 0, .tempered = 0, .first = ~uint64_t{0}};
  row.for_groups([&](const auto& v, int id) {
    float plain = 0, tempered = 0;
    bool found = false;
#pragma unroll
    for (int j = 0; j < Row::kEach; ++j) {
      if constexpr (kAdds != Adds::kWeights) plain += power_of_two((v[j] - largest) * kLog2E);
      if constexpr (kAdds != Adds::kPlain) {
        const float depth = depth_of(t, v[j]);
        tempered += score::if_below(depth, kFar, weight_of(t, v[j], depth, 0.f), 0.f);
      }
      found |= v[j] == largest;
    }
    s.plain += static_cast<double>(plain);
    s.tempered += static_cast<double>(tempered);
    if constexpr (kAdds == Adds::kPlain) {
      if (!found) return;
#pragma unroll
      for (int j = 0; j < Row::kEach; ++j)
        if (v[j] == largest) s.first = min(s.first, place_of(v[j], id + j));
    }
  });
  return s;
}

// Counts the threads' largest logits by binade of depth. Down to the end of a
// binade, the row has at least as many tokens as these counts. Sets scratch.reach to
// the number of binades that certainly have the first `top_k` tokens, or to `most`.
__device__ __forceinline__ void reach_of_count(Scratch& scratch, int rank, int top_k, float depth_of_most,
                                               int most) {
  const int own = static_cast<int>(threadIdx.x), lane = own % kWarp;
  static_assert(kBlocks * kBinades == kThreads && kBinades == 2 * kWarp);
  scratch.count[own] = 0;
  __syncthreads();
  if (depth_of_most < kFar) atomicAdd(&scratch.count[min(static_cast<int>(depth_of_most), kBinades - 1)], 1u);
  __syncthreads();
  peers_have_read();
  publish(&scratch.binades[rank][own % kBinades], scratch.count[own % kBinades], own / kBinades);
  cluster_sync();
  if (own < kWarp) {
    uint32_t even = 0, odd = 0;
    for (int b = 0; b < kBlocks; ++b)
      even += scratch.binades[b][2 * lane], odd += scratch.binades[b][2 * lane + 1];
    uint32_t upto = even + odd;
    tile::add_lanes_before(lane, upto);
    const uint32_t wanted = static_cast<uint32_t>(top_k);
    const int binade = upto - odd >= wanted ? 2 * lane : upto >= wanted ? 2 * lane + 1 : most;
    const int first = __reduce_min_sync(kAllLanes, binade);
    if (lane == 0) scratch.reach = min(first + 1, most);
  }
  __syncthreads();
  have_read_last();
}

// The number of binades that matter: all tokens beyond them, `vocab` at most, weigh less than half of the distance from target to total.
__device__ __forceinline__ int reach_of_mass(double target, double total, int vocab, int most) {
  const double beyond = fmax(total - target, total * 0x1p-30);
  const float binades = ceilf(log2f(static_cast<float>(2 * static_cast<double>(vocab) / beyond)) + 0.01f);
  return max(1, min(static_cast<int>(binades), most));
}

// Applies the cuts of one row in order; sets scratch.place[scratch.chosen] to the sampled token.
template <class Row>
__device__ __forceinline__ void sample_token(const Row& row, Scratch& scratch, int rank, const Temper& t,
                                             const Sampler& d, double total, int reach) {
  const DepthBins bins{.reach = static_cast<float>(reach), .per_binade = kBins / reach};
  const float shared_depth = d.min_p > 0 ? -log2f(d.min_p) : -1.f;
  double mass = total;  // of the remaining tokens
  bool stale = true;    // the histogram has other bins than `bins`
  int listed = 0, listed_bin = -1;
  uint32_t count_above = 0;
  enum Cut { kTopK, kTopP, kSample, kCuts };
  for (int cut = d.top_k > 0 ? kTopK : kTopP; cut < kCuts; ++cut) {
    if (cut == kTopP && !(d.top_p < 1)) continue;
    const By by = cut == kTopK ? By::kCount : By::kMass;
    const bool search = listed_bin != kEverything;
    if (search) peers_have_read();
    if (stale) {
      double shared_mass = 0;
      count_bins(row, scratch, rank, t, bins, [&](float depth, uint32_t units) {
        if (depth <= shared_depth)
          shared_mass += static_cast<double>(units) * unit_at(static_cast<int>(depth));
      });
      if (d.min_p > 0) shared_mass = block_sum(shared_mass, scratch.of_warp);
      if (threadIdx.x < kBlocks)
        publish(&scratch.shared_mass[rank], shared_mass, static_cast<int>(threadIdx.x));
      cluster_sync();
      stale = false;
    }
    // min_p keeps at least the first token, whose weight is 1, and at most the remaining tokens.
    if (cut == kSample && d.min_p > 0) mass = fmax(fmin(mass, sum_of(scratch.shared_mass)), 1.0);
    const double target = cut == kTopK   ? static_cast<double>(d.top_k - 1)
                          : cut == kTopP ? static_cast<double>(d.top_p) * mass
                                         : fmin(d.u * mass, mass * (1 - 0x1p-40));
    if (search) {
      find(scratch, bins, by, target, {.bin = 0, .count = 0, .count_above = 0, .mass_above = 0});
      have_read();
      Found found = scratch.found;
      const bool few = found.count <= kList;
      if (!few) {
        listed = gather_part(row, scratch, rank, t, bins, by, target, &found);
        stale = true;
      } else if (found.bin != listed_bin) {
        listed = gather(row, scratch, rank, t, bins, found.bin, found.mass_above);
      }
      listed_bin = few ? found.bin : -1;
      count_above = found.count_above;
    }
    choose(scratch, by, target, listed, count_above);
    mass = fmin(mass, scratch.running[scratch.chosen]);
  }
}

// Samples a row that has a logit above -inf. Only the first thread's result is valid.
template <class Row>
__device__ __forceinline__ uint64_t answer(const Row& row, Scratch& scratch, int rank, const Sampler& d,
                                           float largest, float most, int vocab, double* plain) {
  const bool weigh = !d.by_order && largest < INFINITY, alone = weigh && d.temperature == 1.f;
  const Temper t = temper_of(largest, weigh ? d.temperature : 1.f);
  const Sums own = alone   ? sums_of<Adds::kWeights>(row, t, largest)
                   : weigh ? sums_of<Adds::kBoth>(row, t, largest)
                           : sums_of<Adds::kPlain>(row, t, largest);
  const double tempered = weigh ? block_sum(own.tempered, scratch.of_warp) : 0;
  const double sum = alone ? tempered : block_sum(own.plain, scratch.of_warp);
  uint64_t first = own.first;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(kAllLanes, first, step);
    first = other < first ? other : first;
  }
  if (threadIdx.x % kWarp == 0) scratch.least_of_warp[threadIdx.x / kWarp] = first;
  peers_have_read();
  __syncthreads();
  if (threadIdx.x < kBlocks) {
    for (int w = 0; w < kWarps; ++w) first = min(first, scratch.least_of_warp[w]);
    const int peer = static_cast<int>(threadIdx.x);
    publish(&scratch.plain[rank], sum, peer), publish(&scratch.tempered[rank], tempered, peer);
    publish(&scratch.least[rank], first, peer);
  }
  cluster_sync();
  *plain = sum_of(scratch.plain);
  const double total = sum_of(scratch.tempered);
  first = scratch.least[0];
  for (int b = 1; b < kBlocks; ++b) first = min(first, scratch.least[b]);
  have_read_last();
  if (!weigh) return first;
  const int binades = 26 + 32 - __clz(vocab);
  int reach = 0;
  if (d.top_k > 0) {
    reach_of_count(scratch, rank, d.top_k, depth_of(t, most), binades);
    reach = scratch.reach;
  } else {
    // With min_p the histogram must reach all tokens that min_p keeps, even if the sampled token is one of the first.
    reach = d.min_p > 0 ? min(binades, 1 + static_cast<int>(fminf(fmaxf(-log2f(d.min_p), 0.f), kFar)))
                        : reach_of_mass((d.top_p < 1 ? static_cast<double>(d.top_p) : d.u) * total, total,
                                        vocab, binades);
  }
  sample_token(row, scratch, rank, t, d, total, reach);
  return scratch.place[scratch.chosen];
}

template <class T, Where kWhere>
__global__ void __launch_bounds__(kThreads, 2) sample(const __grid_constant__ Parameters p) {
  extern __shared__ uint4 shared[];
  Scratch& scratch = *reinterpret_cast<Scratch*>(shared);
  const int rank = static_cast<int>(tile::cluster_rank());
  const int64_t row = blockIdx.x / kBlocks;
  have_read_last();  // tells the peers that this CTA runs
  tile::release_next();
  tile::wait_for_previous();
  const int first = min(rank * p.slice, p.vocab), count = min(p.slice, p.vocab - first);
  const Slice<T, Where::kGlobal> there{static_cast<const T*>(p.logits) + row * p.stride + first, first, count,
                                       p.wide != 0};
  Slice<T, kWhere> here{.data = there.data, .first = first, .count = count, .wide = there.wide};
  const Given given = given_to(p, row);
  float most = -INFINITY;
  if constexpr (kWhere == Where::kShared) {
    T* const held = reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(shared) + kScratchBytes);
    most = take(held, there);
    here.data = held;
  } else {
    here.for_each([&](float logit, int) { most = fmaxf(most, logit); });
  }
  const Sampler d = sampler_of(given, p.vocab);
  const float of_block = block_max(most, scratch.of_warp);
  peers_have_read();
  if (threadIdx.x < kBlocks) publish(&scratch.largest[rank], of_block, static_cast<int>(threadIdx.x));
  cluster_sync();
  float largest = scratch.largest[0];
  for (int b = 1; b < kBlocks; ++b) largest = fmaxf(largest, scratch.largest[b]);
  have_read_last();
  double plain = 0;
  uint64_t place = 0;
  const bool any = largest > -INFINITY;
  if (any) place = answer(here, scratch, rank, d, largest, most, p.vocab, &plain);
  if (rank == 0 && threadIdx.x == 0) {
    const double above = static_cast<double>(logit_at(place)) - static_cast<double>(largest);
    p.token[row] = any ? id_at(place) : 0;
    p.logprob[row] = any && largest < INFINITY ? static_cast<float>(above - log(plain)) : NAN;
  }
  __syncthreads();
  peers_have_read();  // no CTA exits while a peer reads its shared memory
}

Status Launcher::enqueue(const Sample::Problem& p, const Sample::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  static_assert(kBlocksOfRow == kBlocks);
  constexpr int64_t kBytes = 16;
  constexpr size_t kMax = size_t{227} << 10,
                   kAlone = size_t{120} << 10;  // per CTA: no second CTA fits on the SM
  constexpr int64_t kFewRows = 16;
  const int64_t each = kBytes * 8 / bits_of(p.logits), groups = (p.vocab + each - 1) / each;
  const int64_t slice = (groups + kBlocks - 1) / kBlocks * each;
  const Parameters parameters{.logits = a.logits.data,
                              .stride = a.logits.stride[0],
                              .temperature = a.temperature.as<const float>(),
                              .top_p = a.top_p.as<const float>(),
                              .min_p = a.min_p.as<const float>(),
                              .top_k = a.top_k.as<const int32_t>(),
                              .seed = a.seed.as<const int64_t>(),
                              .step = a.step.as<const int64_t>(),
                              .token = a.token.as<int32_t>(),
                              .logprob = a.logprob.as<float>(),
                              .vocab = static_cast<int>(p.vocab),
                              .slice = static_cast<int>(slice),
                              .wide = reinterpret_cast<uintptr_t>(a.logits.data) % kBytes == 0 &&
                                      (p.rows == 1 || bytes_of(p.logits, a.logits.stride[0]) % kBytes == 0)};
  const size_t held = kScratchBytes + static_cast<size_t>(bytes_of(p.logits, slice));
  const bool holds = held <= kMax, bf16 = p.logits == DType::kBF16;
  const auto kernel = holds ? (bf16 ? sample<__nv_bfloat16, Where::kShared> : sample<float, Where::kShared>)
                            : (bf16 ? sample<__nv_bfloat16, Where::kGlobal> : sample<float, Where::kGlobal>);
  const size_t bytes = holds ? held : kScratchBytes;
  const Launch how{.grid = {static_cast<unsigned>(p.rows * kBlocks), 1, 1},
                   .block = {kThreads, 1, 1},
                   .shared_bytes = p.rows <= kFewRows ? std::max(bytes, kAlone) : bytes,
                   .cluster = {kBlocks, 1, 1}};
  return launch(sample_cluster_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
