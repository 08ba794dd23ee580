// Constants and shapes that the kernel descriptors of the expert kernels share with their device code. Plain C++.
#pragma once
#include "backends/cuda/card.h"
#include "backends/cuda/experts/cost/cost.h"
#include "backends/cuda/experts/mlp_workspace.h"
#include "backends/cuda/grid_words.h"
#include "ops/fragment_layout.h"
#include "ops/fused/expert_mlp.h"

namespace sluice::cuda {

constexpr int kListExpertsMax = 1024;  // 32 per lane
// A sum over k is added up in splits. Where they begin and end depends on the shape alone, not on the team that computes them.
constexpr int kSplits = 4;
constexpr int kSplitSteps = 4;  // granularity of a split, in k blocks

namespace fewtokens {

constexpr int kTeams = 4;
constexpr int kSlotsMax = 64;  // two per lane
constexpr int kSplitsMax = 8;  // per sum of the first product

// How sums over k of the first product are split. A small slice of a layer has few units of the first product, so each of its sums
// is cut into `count` splits of `steps` k blocks. Where a split begins and ends does not depend on the team that computes it.
struct Splits {
  int steps = 0, count = 0;

  Splits() = default;
  explicit Splits(int64_t k_blocks) {
    steps = static_cast<int>((k_blocks + kSplitsMax * kSplitSteps - 1) / (kSplitsMax * kSplitSteps) *
                             kSplitSteps);
    count = static_cast<int>((k_blocks + steps - 1) / steps);
  }
  // True if the partial sums that teams exchange through the grid words fit there for every accepted number of tokens.
  bool fit(int64_t row_blocks) const {
    return kSlotsMax * row_blocks * (count - 1) * kFragmentRows * 4 <= static_cast<int64_t>(kGridSumBytes);
  }
};
// True if the sums of the first product are split.
inline bool is_cut(const ExpertMlp::Problem& p) {
  const FragmentShape up = ExpertGemm::fragments(ExpertMlp::up(p));
  return Splits(up.k_blocks).fit(up.row_blocks);
}

constexpr int64_t kShortMax = 8;  // maximum number of k blocks of the second product for ShortSecond
inline bool is_small(const ExpertMlp::Problem& p) {
  return WeightFormat{p.w, p.scales} == WeightFormat{DType::kE2M1} && is_cut(p) &&
         ExpertGemm::fragments(ExpertMlp::down(p)).k_blocks <= kShortMax;
}

}  // namespace fewtokens

// Conditions of every kernel for few tokens, for all weight types.
inline void need_fewtokens(Refusal& r, const ExpertMlp::Problem& p, const DeviceInfo& d) {
  need_expert_blocks(r, ExpertMlp::up(p), d);
  need_multiple(r, "intermediate", p.intermediate, 8, "copies of 16 bytes");
  const bool two = fewtokens::is_small(p);
  const int most = two ? fewtokens::kSlotsMax : fewtokens::kSlotsMax / 2;
  r.need(
      ExpertMlp::rows(p) <= most,
      "tokens * slots <= " + std::to_string(most) + (two ? " (two for each lane)" : " (one for each lane)"),
      "tokens * slots", ExpertMlp::rows(p));
}

// Bytes of h, and of g in f32: the tensors between the products and the combine.
inline size_t fewtokens_workspace_bytes(const ExpertMlp::Problem& p, const DeviceInfo& d) {
  return ExpertMlpBetween::at(nullptr, ExpertMlp::with_f32_g(p), d.backend).bytes;
}

// Cost: the weights of both products and g in f32 at the streaming rate, plus a constant for prologue, grid barrier and
// epilogue. It assumes the same routing as the cost models of the unfused kernels, so that their costs are comparable.
struct FewTokensCost {
  double begin_us, memory_share;
};
inline double fewtokens_us(const ExpertMlp::Problem& p, const DeviceInfo& d, const FewTokensCost& of) {
  const double bytes =
      routed_bytes(ExpertMlp::up(p)) + routed_bytes(ExpertMlp::down(ExpertMlp::with_f32_g(p)));
  return of.begin_us + bytes / (of.memory_share * d.mem_bytes_per_us);
}

namespace slices {

using fewtokens::kTeams;

// features per slice; features per slice that one CTA of the pair writes
constexpr int kRows = 16, kRowsEach = kRows / 2;
// Consumer warps, and the threads of y's epilogue.
constexpr int kWarps = kTeams * 4, kEpilogueThreads = kWarps * 32;
constexpr int kRowBlocks = 32;                  // k blocks of h in a stage
constexpr int kRingStages = 4;                  // per team
constexpr int kRowsOfH = kTeams * kRingStages;  // a stage has one row
constexpr int kSums = 3072;

// How sums over k of the second product are cut; depends on the shape alone. The four consumer warps of a team form one group of
// four or two groups of two. A group processes one unit at a time, and each of its warps loads `boxes` boxes of `box` k blocks.
// split = 1: each CTA of a pair computes half of every sum. split = 0: each CTA computes whole sums of every second unit.
struct Cut {
  int box = 0, groups = 0, boxes = 0, split = 0;
  int group_warps() const { return 4 / groups; }
  int segments() const { return group_warps() << split; }
  int blocks() const { return group_warps() * boxes * box; }  // k blocks of a unit
};
inline Cut cut_of(int k_blocks, int slots, int slices_max) {
  Cut best;
  double least = 0;
  for (int split : {0, 1}) {
    for (int groups : {1, 2}) {
      for (int box : {3, 4}) {
        Cut cut{.box = box, .groups = groups, .boxes = 1, .split = split};
        const int each = cut.blocks() << split;
        cut.boxes = (k_blocks + each - 1) / each;
        const int of_cluster = kTeams * groups * (2 - split), units = slices_max * slots;
        const double clocks = (units + of_cluster - 1) / of_cluster * (cut.boxes * box + 1.2);  // in k blocks
        if (cut.blocks() > kRowBlocks) continue;
        // A group without units exits and releases no more stages, so the other group may have at most kRingStages boxes left.
        if (groups == 2 && cut.boxes > kRingStages) continue;
        if (least > 0 && clocks >= least) continue;
        least = clocks, best = cut;
      }
    }
  }
  return best;
}

struct Plan {
  Cut cut;
  int slices = 0, clusters = 0, slices_max = 0, lanes_log = 0;

  Plan(const ExpertMlp::Problem& p, int sms)
      : slices(static_cast<int>((p.hidden + kRows - 1) / kRows)), clusters(std::max(sms / 2, 1)) {
    slices_max = (slices + clusters - 1) / clusters;
    cut = cut_of(static_cast<int>((p.intermediate + kFragmentWidth - 1) / kFragmentWidth),
                 static_cast<int>(p.slots), slices_max);
    while (1 << lanes_log < p.slots) ++lanes_log;
  }
  int sums(const ExpertMlp::Problem& p) const {
    return slices_max * kRowsEach * static_cast<int>(ExpertMlp::rows(p)) * (cut.segments() | 1);
  }
  int epilogue_threads(const ExpertMlp::Problem& p) const {
    return slices_max * kRowsEach * static_cast<int>(p.tokens) << lanes_log;
  }
};
}  // namespace slices

}  // namespace sluice::cuda
