// Finds the token, in sampling order, at which a running sum of weights or a count of tokens reaches a
// target. A histogram over depth finds the token's bin; then the tokens of that bin are sorted. A bin
// with too many tokens (of equal logits, for example) is divided by place (place_of()), repeatedly.
//
// Bins are in sampling order, because depth never decreases as logits decrease. Counts and units are
// integers, so atomic additions give the same bits in any order. Sums of bins are added in a fixed order.
#pragma once
#include "backends/cuda/sampling/sample_row.cuh"
#include "backends/cuda/tile/warp.cuh"

namespace sluice::cuda::draw {

enum class By : uint8_t { kCount, kMass };

// Bins of depth. A binade is the depths with the same integer part; it has `per_binade` bins. reach * per_binade is at most kBins.
struct DepthBins {
  float reach;
  int per_binade;
  // Returns -1 if the depth is beyond all bins.
  __device__ __forceinline__ int of(const Temper& t, float logit, int) const {
    const float depth = depth_of(t, logit);
    if (!(depth < reach)) return -1;
    const int binade = static_cast<int>(depth);
    const float part = (depth - static_cast<float>(binade)) * static_cast<float>(per_binade);
    return binade * per_binade + min(static_cast<int>(part), per_binade - 1);
  }
  __device__ __forceinline__ int binade(int bin) const { return bin / per_binade; }
};

// Bins of places (place_of()), from `least` to `most`, which are in one binade.
struct PlaceBins {
  uint64_t least, most;
  int shift, in_binade;
  __device__ __forceinline__ int of(const Temper&, float logit, int id) const {
    const uint64_t place = place_of(logit, id);
    return place < least || place > most ? -1 : static_cast<int>((place - least) >> shift);
  }
  __device__ __forceinline__ int binade(int) const { return in_binade; }
};

__device__ __forceinline__ double mass_of(uint64_t high, uint64_t low, double unit) {
  return static_cast<double>((high << kHalfBits) + low) * unit;
}

// Counts the slice's tokens per bin, and sends the sums of groups of bins to all CTAs. Calls also(depth, units) for each token with a bin.
template <class Row, class Bins, class F>
__device__ __forceinline__ void count_bins(const Row& row, Scratch& scratch, int rank, const Temper& t,
                                           const Bins& bins, F also) {
  static_assert(kBins == kThreads);
  const int own = static_cast<int>(threadIdx.x), lane = own % kWarp, group = own / kWarp;
  scratch.count[own] = scratch.high[own] = scratch.low[own] = 0;
  __syncthreads();
  row.for_each([&](float logit, int id) {
    const int bin = bins.of(t, logit, id);
    if (bin < 0) return;
    const float depth = depth_of(t, logit);
    const uint32_t units = units_of(t, logit, depth);
    atomicAdd(&scratch.count[bin], 1u);
    atomicAdd(&scratch.high[bin], units >> kHalfBits);
    atomicAdd(&scratch.low[bin], units & ((1u << kHalfBits) - 1));
    also(depth, units);
  });
  __syncthreads();
  double mass = mass_of(scratch.high[own], scratch.low[own], unit_at(bins.binade(own)));
  uint32_t count = scratch.count[own];
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    mass += __shfl_xor_sync(kAllLanes, mass, step);
    count += __shfl_xor_sync(kAllLanes, count, step);
  }
  if (lane < kBlocks) {
    publish(&scratch.group_mass[rank][group], mass, lane);
    publish(&scratch.group_count[rank][group], count, lane);
  }
}

// The first lane at which the running sum exceeds the target; if there is none, the last
// lane that has tokens. Adds the sums of the lanes before it to the sums in `found`.
__device__ __forceinline__ int crossing(By by, double target, double mass, uint32_t count, Found* found) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  double mass_upto = mass;
  uint32_t count_upto = count;
  tile::add_lanes_before(lane, mass_upto, count_upto);
  const bool beyond = by == By::kMass ? found->mass_above + mass_upto > target
                                      : static_cast<double>(found->count_above + count_upto) > target;
  const uint32_t there = __ballot_sync(kAllLanes, count > 0), hits = __ballot_sync(kAllLanes, beyond) & there;
  const int at = hits ? __ffs(static_cast<int>(hits)) - 1 : there ? 31 - __clz(static_cast<int>(there)) : 0;
  const double mass_before = __shfl_sync(kAllLanes, mass_upto, max(at - 1, 0));
  const uint32_t count_before = __shfl_sync(kAllLanes, count_upto, max(at - 1, 0));
  if (at > 0) found->mass_above += mass_before, found->count_above += count_before;
  found->count = __shfl_sync(kAllLanes, count, at);
  return at;
}

// Sets scratch.found to the bin in which the target is reached. from: the sums above all bins.
// It reads the histograms of peer CTAs, so no arrival at the cluster barrier may be pending.
template <class Bins>
__device__ __forceinline__ void find(Scratch& scratch, const Bins& bins, By by, double target, Found from) {
  if (threadIdx.x < kWarp) {
    const int lane = static_cast<int>(threadIdx.x);
    double mass = 0;
    uint32_t count = 0;
    for (int b = 0; lane < kGroups && b < kBlocks; ++b)
      mass += scratch.group_mass[b][lane], count += scratch.group_count[b][lane];
    uint32_t all = count;
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) all += __shfl_xor_sync(kAllLanes, all, step);
    Found found = from;
    found.bin = kEverything, found.count = all;
    if (all > kList) {
      const int group = crossing(by, target, mass, count, &found), bin = group * kWarp + lane;
      uint64_t high = 0, low = 0;
      count = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        count += read_peer(&scratch.count[bin], b);
        high += read_peer(&scratch.high[bin], b), low += read_peer(&scratch.low[bin], b);
      }
      found.bin =
          group * kWarp + crossing(by, target, mass_of(high, low, unit_at(bins.binade(bin))), count, &found);
    }
    if (lane == 0) scratch.found = found;
  }
  __syncthreads();
}

// Sorts the listed places and computes the running sums of their weights.
__device__ __forceinline__ void order(Scratch& scratch, const Temper& t, int listed, double mass_above) {
  constexpr int kParts = kThreads / kList;
  const int own = static_cast<int>(threadIdx.x), entry = own % kList, lane = own % kWarp;
  const uint64_t place = entry < listed ? scratch.place[entry] : 0;
  const int each = (listed + kParts - 1) / kParts, begin = own / kList * each;
  if (entry < listed) {
    uint32_t before = 0;
#pragma unroll 4
    for (int i = begin; i < min(begin + each, listed); ++i) before += scratch.place[i] < place;
    atomicAdd(&scratch.rank[entry], before);
  }
  __syncthreads();
  const uint32_t at = own < listed ? scratch.rank[own] : 0;
  if (own < listed) scratch.place[at] = place;
  __syncthreads();
  double weight = 0;
  if (own < listed) {
    const float logit = logit_at(scratch.place[own]), depth = depth_of(t, logit);
    weight = static_cast<double>(units_of(t, logit, depth)) * unit_at(static_cast<int>(depth));
  }
  double upto = weight;
  tile::add_lanes_before(lane, upto);
  if (lane == kWarp - 1) scratch.of_warp[own / kWarp] = upto;
  __syncthreads();
  double before = mass_above;
  for (int w = 0; w < own / kWarp; ++w) before += scratch.of_warp[w];
  if (own < listed) scratch.running[own] = before + upto;
  __syncthreads();
}

// Lists, in every CTA, the tokens of bin `wanted`, or of all bins (kEverything), in order; at most kList. Returns their number.
template <class Row, class Bins>
__device__ __forceinline__ int gather(const Row& row, Scratch& scratch, int rank, const Temper& t,
                                      const Bins& bins, int wanted, double mass_above) {
  const int own = static_cast<int>(threadIdx.x);
  peers_have_read();
  if (own == 0) scratch.mine_count = 0;
  __syncthreads();
  row.for_each([&](float logit, int id) {
    const int bin = bins.of(t, logit, id);
    if (bin < 0 || (wanted != kEverything && bin != wanted)) return;
    const uint32_t slot = atomicAdd(&scratch.mine_count, 1u);
    if (slot < kList) scratch.mine[slot] = place_of(logit, id);
  });
  __syncthreads();
  if (own < kBlocks) publish(&scratch.list_count[rank], scratch.mine_count, own);
  cluster_sync();
  int listed = 0, from = 0, index = 0;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const int count = static_cast<int>(scratch.list_count[b]);
    if (own >= listed && own < listed + count) from = b, index = own - listed;
    listed += count;
  }
  listed = min(listed, kList);
  if (own < listed) scratch.place[own] = read_peer(&scratch.mine[index], from);
  if (own < kList) scratch.rank[own] = 0;
  __syncthreads();
  have_read();
  order(scratch, t, listed, mass_above);
  return listed;
}

// The places of the first and of the last token of a bin.
template <class Row>
__device__ __forceinline__ PlaceBins span_of(const Row& row, Scratch& scratch, int rank, const Temper& t,
                                             const DepthBins& bins, int wanted) {
  const int own = static_cast<int>(threadIdx.x), lane = own % kWarp;
  uint64_t least = ~uint64_t{0}, most = 0;
  row.for_each([&](float logit, int id) {
    if (bins.of(t, logit, id) != wanted) return;
    const uint64_t place = place_of(logit, id);
    least = place < least ? place : least, most = place > most ? place : most;
  });
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const uint64_t low = __shfl_xor_sync(kAllLanes, least, step),
                   high = __shfl_xor_sync(kAllLanes, most, step);
    least = low < least ? low : least, most = high > most ? high : most;
  }
  if (lane == 0) scratch.least_of_warp[own / kWarp] = least, scratch.most_of_warp[own / kWarp] = most;
  peers_have_read();
  __syncthreads();
  if (own < kBlocks) {
    for (int w = 0; w < kWarps; ++w) {
      const uint64_t low = scratch.least_of_warp[w], high = scratch.most_of_warp[w];
      least = low < least ? low : least, most = high > most ? high : most;
    }
    publish(&scratch.least[rank], least, own), publish(&scratch.most[rank], most, own);
  }
  cluster_sync();
  PlaceBins span{
      .least = scratch.least[0], .most = scratch.most[0], .shift = 0, .in_binade = bins.binade(wanted)};
  for (int b = 1; b < kBlocks; ++b) {
    if (scratch.least[b] < span.least) span.least = scratch.least[b];
    if (scratch.most[b] > span.most) span.most = scratch.most[b];
  }
  have_read();
  return span;
}

// gather() for a bin with more tokens than a list holds: lists only the part in which the target is reached. Overwrites the histogram.
template <class Row>
__device__ __forceinline__ int gather_part(const Row& row, Scratch& scratch, int rank, const Temper& t,
                                           const DepthBins& bins, By by, double target, Found* found) {
  constexpr int kBinBits = 9;
  static_assert(1 << kBinBits == kBins);
  PlaceBins span = span_of(row, scratch, rank, t, bins, found->bin);
  while (found->count > kList) {
    span.shift = max(0, 64 - __clzll(static_cast<long long>(span.most - span.least)) - kBinBits);
    peers_have_read();
    count_bins(row, scratch, rank, t, span, [](float, uint32_t) {});
    cluster_sync();
    find(scratch, span, by, target, *found);
    have_read();
    *found = scratch.found;
    span.least += static_cast<uint64_t>(found->bin) << span.shift;
    const uint64_t last = span.least + ((uint64_t{1} << span.shift) - 1);
    span.most = last < span.most ? last : span.most;
  }
  return gather(row, scratch, rank, t, span, kEverything, found->mass_above);
}

// Sets scratch.chosen to the list entry at which the target is reached; if it is not reached, to the last entry.
__device__ __forceinline__ void choose(Scratch& scratch, By by, double target, int listed,
                                       uint32_t count_above) {
  const int own = static_cast<int>(threadIdx.x);
  __syncthreads();  // scratch.chosen may still be read
  if (own < listed) {
    const bool first = own == 0, last = own == listed - 1;
    const double count = static_cast<double>(count_above) + own + 1;
    const double upto = by == By::kMass ? scratch.running[own] : count;
    const double before = by == By::kMass ? scratch.running[max(own - 1, 0)] : count - 1;
    if ((last || upto > target) && (first || before <= target)) scratch.chosen = own;
  }
  __syncthreads();
}

}  // namespace sluice::cuda::draw
