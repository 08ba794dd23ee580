// How the grid of tile/grouping.cuh divides the slots of a GroupRows problem among CTAs.
#pragma once
#include <algorithm>

#include "ops/group_rows.h"

namespace sluice::cuda {

struct GroupGrid {
  int cluster = 1, clusters = 1;  // CTAs per cluster; clusters in the grid
  int clusters_max = 1;  // maximum number of clusters of any problem with at most this many tokens; sizes
                         // the workspace
  int tokens_per_block = 1;
  int words = 1;  // 32-bit mask words per expert

  // If true, a second launch converts ranks within clusters to rows.
  bool second_launch() const { return clusters > 1; }
};

// The number of experts, rounded up so that 16-bit counts are whole 16-byte chunks.
constexpr int64_t padded_experts(int64_t experts) { return (experts + 7) / 8 * 8; }

inline GroupGrid group_grid(const GroupRows::Problem& p) {
  constexpr int64_t kSlots = 512;  // per CTA: one per thread
  // The mask of a CTA has at most 32 KiB, and at most 16 words per expert.
  constexpr int64_t kMaskWords = 8 << 10, kWordsMax = 16;
  // with more experts, the counts of 16 CTAs do not fit into shared memory
  constexpr int64_t kManyExperts = 1024;
  constexpr int64_t kBlocks = 256;  // maximum number of CTAs: about two per SM
  // An H200 runs 7 clusters of 16 at once (112 SMs), or 15 clusters of 8 (120 SMs).
  constexpr int kClustersOf16 = 7;
  constexpr int64_t kManyTokens = 32;  // tokens per CTA beyond which more CTAs are faster than larger CTAs
  const auto over = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  GroupGrid g;
  const int64_t words = std::min(kWordsMax, kMaskWords / padded_experts(p.experts));
  const int64_t fits = std::max<int64_t>(32 * words / p.slots, 1);
  const int64_t cluster_max = p.experts > kManyExperts ? 8 : 16;
  const int64_t wanted = std::min(std::max<int64_t>(kSlots / p.slots, 1), fits);  // per CTA
  int64_t each = wanted;
  if (p.tokens <= cluster_max * wanted) {
    while (g.cluster < cluster_max && g.cluster * wanted < p.tokens) g.cluster *= 2;
    each = over(p.tokens, g.cluster);
  } else {
    g.cluster = static_cast<int>(cluster_max);
    each = std::min(fits, std::clamp(over(p.tokens, kBlocks), wanted, std::max(wanted, kManyTokens)));
    g.clusters = static_cast<int>(over(p.tokens, each * g.cluster));
    if (g.clusters > kClustersOf16) {
      g.cluster = std::min(g.cluster, 8);
      g.clusters = static_cast<int>(over(p.tokens, each * g.cluster));
    }
    // A problem with fewer tokens, and so with smaller CTAs, can need more clusters: up to kBlocks CTAs in clusters of 8.
    g.clusters_max = each > wanted ? std::max(g.clusters, static_cast<int>(kBlocks / 8)) : g.clusters;
  }
  g.tokens_per_block = static_cast<int>(std::max<int64_t>(each, 1));
  g.words = static_cast<int>(over(int64_t{g.tokens_per_block} * p.slots, 32));
  if (g.words > 1) g.words |= 1;  // odd, so that the words of adjacent experts are in different banks
  return g;
}

// Bytes of workspace for the counts of all clusters; 0 if there is one cluster. Does not decrease as tokens increase.
inline size_t cluster_count_bytes(const GroupRows::Problem& p, const GroupGrid& g) {
  return g.clusters == 1
             ? 0
             : static_cast<size_t>(g.clusters_max) * static_cast<size_t>(p.experts) * sizeof(uint32_t);
}

// In the second launch, the number of parts into which a cluster's slots are split, so that the parts fill the device.
inline int second_split(const GroupGrid& g) { return std::max(1, 132 / g.clusters); }

}  // namespace sluice::cuda
