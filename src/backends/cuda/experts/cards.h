// What cards of expert kernels know of the kernels: plain C++.
#pragma once
#include "backends/cuda/card.h"
#include "backends/cuda/experts/cost.h"
#include "backends/cuda/grid_words.h"
#include "ops/expert_mlp.h"
#include "ops/fragment_layout.h"

namespace sluice::cuda {

constexpr int kListExpertsMost = 1024;  // 32 for a lane
constexpr int kParts = 4;               // of a sum, cut in the same places whoever adds them up
constexpr int kPartSteps = 4;           // k blocks that no cut divides

namespace fewtokens {

constexpr int kTeams = 4;
constexpr int kSlotsMost = 64;  // two for each lane
constexpr int kPartsMost = 8;   // of a sum of the first product

// Where a layer's slices are small, a few units of the first product are all there is: then their sums are cut, in the same
// places whoever adds them up, into parts of so many k blocks.
struct Parts {
  int steps = 0, count = 0;

  Parts() = default;
  explicit Parts(int64_t k_blocks) {
    steps =
        static_cast<int>((k_blocks + kPartsMost * kPartSteps - 1) / (kPartsMost * kPartSteps) * kPartSteps);
    count = static_cast<int>((k_blocks + steps - 1) / steps);
  }
  // Whether the meeting has room for those that teams give each other, of any number of tokens.
  bool fit(int64_t row_blocks) const {
    return kSlotsMost * row_blocks * (count - 1) * kFragmentRows * 4 <= static_cast<int64_t>(kGridSumBytes);
  }
};
// Whether the first product of a problem is cut.
inline bool is_cut(const ExpertMlp::Problem& p) {
  const FragmentShape up = ExpertGemm::fragments(ExpertMlp::up(p));
  return Parts(up.k_blocks).fit(up.row_blocks);
}

constexpr int64_t kShortMost = 8;  // k blocks of the second product, where it has ShortSecond
inline bool is_small(const ExpertMlp::Problem& p) {
  return p.w == DType::kE2M1 && is_cut(p) && ExpertGemm::fragments(ExpertMlp::down(p)).k_blocks <= kShortMost;
}

}  // namespace fewtokens

// Conditions of every kernel here, whatever the type of its weights.
inline void need_fewtokens(Refusal& r, const ExpertMlp::Problem& p, const DeviceInfo& d) {
  need_expert_blocks(r, ExpertMlp::up(p), d);
  need_multiple(r, "intermediate", p.intermediate, 8, "copies of 16 bytes");
  const bool two = fewtokens::is_small(p);
  const int most = two ? fewtokens::kSlotsMost : fewtokens::kSlotsMost / 2;
  r.need(
      ExpertMlp::rows(p) <= most,
      "tokens * slots <= " + std::to_string(most) + (two ? " (two for each lane)" : " (one for each lane)"),
      "tokens * slots", ExpertMlp::rows(p));
}

// Both products' weights at the rate of a stream, g in f32, and what it takes to begin, to meet and to end.
struct FewTokensCost {
  double begin_us, memory_share;
};
inline double fewtokens_us(const ExpertMlp::Problem& p, const DeviceInfo& d, const FewTokensCost& of) {
  const double bytes =
      ExpertGemm::bytes(ExpertMlp::up(p)) + ExpertGemm::bytes(ExpertMlp::down(ExpertMlp::with_f32_g(p)));
  return of.begin_us + bytes / (of.memory_share * d.mem_bytes_per_us);
}

namespace slices {

using fewtokens::kTeams;

constexpr int kRows = 16, kRowsEach = kRows / 2;  // features of a slice, and of a block's part
// Warps that multiply, and their threads, which end y.
constexpr int kWarps = kTeams * 4, kEnders = kWarps * 32;
constexpr int kRowBlocks = 32;                  // k blocks of h in a stage
constexpr int kRingStages = 4;                  // of a team
constexpr int kRowsOfH = kTeams * kRingStages;  // a stage has one row
constexpr int kSums = 3072;

// How a sum is cut, by the shape alone: the four warps of a team are one group or two, a group has a unit at a time, as boxes
// of `box` k blocks for each of its warps. split: the blocks of a cluster have half of each sum each; else each has all
// of every other unit.
struct Cut {
  int box = 0, groups = 0, boxes = 0, split = 0;
  int group_warps() const { return 4 / groups; }
  int segments() const { return group_warps() << split; }
  int blocks() const { return group_warps() * boxes * box; }  // of a unit
};
inline Cut cut_of(int k_blocks, int slots, int slices_most) {
  Cut best;
  double least = 0;
  for (int split : {0, 1}) {
    for (int groups : {1, 2}) {
      for (int box : {3, 4}) {
        Cut cut{.box = box, .groups = groups, .boxes = 1, .split = split};
        const int each = cut.blocks() << split;
        cut.boxes = (k_blocks + each - 1) / each;
        const int of_cluster = kTeams * groups * (2 - split), units = slices_most * slots;
        const double clocks = (units + of_cluster - 1) / of_cluster * (cut.boxes * box + 1.2);  // in k blocks
        if (cut.blocks() > kRowBlocks) continue;
        // A group without a unit leaves; its team goes on with a ring's stages at most.
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
  int slices = 0, clusters = 0, slices_most = 0, lanes_log = 0;

  Plan(const ExpertMlp::Problem& p, int sms)
      : slices(static_cast<int>((p.hidden + kRows - 1) / kRows)), clusters(std::max(sms / 2, 1)) {
    slices_most = (slices + clusters - 1) / clusters;
    cut = cut_of(static_cast<int>((p.intermediate + kFragmentWidth - 1) / kFragmentWidth),
                 static_cast<int>(p.slots), slices_most);
    while (1 << lanes_log < p.slots) ++lanes_log;
  }
  int sums(const ExpertMlp::Problem& p) const {
    return slices_most * kRowsEach * static_cast<int>(ExpertMlp::rows(p)) * (cut.segments() | 1);
  }
  int enders(const ExpertMlp::Problem& p) const {
    return slices_most * kRowsEach * static_cast<int>(p.tokens) << lanes_log;
  }
};
}  // namespace slices

}  // namespace sluice::cuda
