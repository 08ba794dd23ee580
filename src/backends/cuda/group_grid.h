// How the slots of a GroupRows problem are shared out over the blocks of a grid (tile/grouping.cuh).
#pragma once
#include <algorithm>

#include "ops/group_rows.h"

namespace sluice::cuda {

struct GroupGrid {
  int cluster = 1, clusters = 1;  // blocks of a cluster; clusters of the grid
  int tokens_per_block = 1;
  int bits_per_token = 1;      // 1 where a token's slots have different experts, else slots
  int words = 1;               // of bits, for each expert
  bool second_launch = false;  // turns ranks into rows; else the last cluster does
};

// What a kernel wants: tokens of a block while one cluster will do, at least and at most, and in a grid of several; up to
// how many tokens one launch is best.
struct GroupWishes {
  int64_t least = 4, most = 16, several = 8, one_launch = 1024;
};

// Experts rounded up so that counts, 16 bits each, travel 16 bytes at a time.
constexpr int64_t padded_experts(int64_t experts) { return (experts + 7) / 8 * 8; }

inline GroupGrid group_grid(const GroupRows::Problem& p, bool slots_differ, const GroupWishes& wishes) {
  constexpr int64_t kMaskWords = 8 << 10, kWordsMost = 16;  // a block's bits: 32 KiB, and 16 words an expert
  constexpr int64_t kManyExperts = 1024;                    // the counts of 16 blocks would not fit
  constexpr int64_t kBlocks = 256;                          // two on each SM
  constexpr int kClustersOf16 = 7;     // that an H200 runs at once: 112 SMs; 15 of 8 have 120
  constexpr int64_t kManyTokens = 32;  // in a block: beyond, more blocks are better than larger ones
  const auto over = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  GroupGrid g;
  g.bits_per_token = slots_differ ? 1 : static_cast<int>(p.slots);
  const int64_t words = std::min(kWordsMost, kMaskWords / padded_experts(p.experts));
  const int64_t fits = std::max<int64_t>(32 * words / g.bits_per_token, 1);
  const int64_t cluster_most = p.experts > kManyExperts ? 8 : 16;
  const int64_t most = std::min(wishes.most, fits), least = std::min(wishes.least, most);
  int64_t each = 1;
  if (p.tokens <= cluster_most * most) {
    while (g.cluster < cluster_most && g.cluster * least < p.tokens) g.cluster *= 2;
    each = over(p.tokens, g.cluster);
  } else {
    g.second_launch = p.tokens > wishes.one_launch;
    g.cluster = static_cast<int>(cluster_most);
    each = std::min(wishes.several, fits);
    if (g.second_launch)
      each = std::min(fits, std::clamp(over(p.tokens, kBlocks), each, std::max(each, kManyTokens)));
    g.clusters = static_cast<int>(over(p.tokens, each * g.cluster));
    if (g.clusters > kClustersOf16) {
      g.cluster = std::min(g.cluster, 8);
      g.clusters = static_cast<int>(over(p.tokens, each * g.cluster));
    }
  }
  g.tokens_per_block = static_cast<int>(std::max<int64_t>(each, 1));
  g.words = static_cast<int>(over(int64_t{g.tokens_per_block} * g.bits_per_token, 32));
  if (g.words > 1) g.words |= 1;  // odd, so that neighbouring experts' words lie in different banks
  return g;
}

// The counts of each cluster, where there are several.
inline size_t cluster_count_bytes(const GroupRows::Problem& p, const GroupGrid& g) {
  return g.clusters == 1
             ? 0
             : static_cast<size_t>(g.clusters) * static_cast<size_t>(p.experts) * sizeof(uint32_t);
}

// Pieces of a cluster's slots for the second launch, so that its blocks fill the device.
inline int second_split(const GroupGrid& g) { return std::max(1, 132 / g.clusters); }

}  // namespace sluice::cuda
