// Expert GEMM for many rows an expert, mxfp4 weights: tiles of 192 or 384 weight rows x 16 to 192 rows of x
// (expert_gemm_tile.cuh), a persistent grid. The tiles that fit the mean serve all experts near it; others, if any, are
// served by launches of other tiles behind that one, each of the experts whose own count it fits, so that a popular expert
// is not cut into many tiles, each of which decodes its weights again. From kGatheredRows rows an expert on, rows of x that
// are gathered from tokens are copied to the workspace first, in their order, where weights have rows enough (kGatherWeights):
// the copy engine then fetches them at a tenth of the instructions. Beyond kManyRows pairs of blocks share them, so that each
// row comes once for 384 weight rows: they bring them into order themselves while they multiply, or fetch them from their tokens
// where weights have few rows.
//
// Wins    more than a few rows an expert: each weight that is dequantised serves all of a tile's rows.
// Loses   fewer rows: SMs idle while the last tiles run. See mxfp4_stream_sm90.
// Limits  see supports(). Sums are never split, and all tiles sum in the same order, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/expert_gemm.h, the measurements are docs/notes/cuda-mxfp4.md.
#include <iterator>
#include <string>
#include "backends/cuda/card.h"
#include "backends/cuda/expert_cards.h"
#include "backends/cuda/expert_cost.h"
#include "backends/cuda/expert_gather.h"
#include "backends/cuda/expert_share.h"

namespace sluice::cuda {
namespace {

// Classes of tiles, by the rows of an expert that they serve, from few to many. Few columns leave room for stages of more k
// blocks, whose beginnings cost as much as one of them; widths 8 apart spare what the tensor cores do for nobody.
enum : int { kTo16, kTo24, kTo32, kTo40, kTo48, kTo56, kTo80, kTo112, kTo192, kTo160, kClassCount };
struct TileClass {
  int row_blocks, columns_least, columns_most;
  int k_blocks;     // the first launch's width has a multiple of these, or the next plan does as well
  double pace = 1;  // what a fragment takes, over tile_fragment_ns
};
constexpr TileClass kClasses[] = {{6, 8, 16, 5, 0.975}, {6, 8, 24, 1, 0.97}, {6, 16, 32, 1}, {6, 24, 40, 1},
                                  {6, 32, 48, 1},       {6, 40, 56, 1},      {6, 64, 80, 1}, {3, 64, 112, 1},
                                  {3, 160, 192, 1},     {3, 112, 160, 1}};
static_assert(std::size(kClasses) == kClassCount);

// What a mean of rows an expert asks for.
struct TilePlan {
  double mean_most;  // up to which
  int first;         // the class of the first launch
  unsigned others;   // those of the launches behind it, a bit each
  // Classes of fewer columns than the first's serve experts of so many standard deviations below the mean: where they are
  // much better, all that they can.
  double apart = 3;
};
constexpr TilePlan kPlans[] = {{9.5, kTo16, 1 << kTo112},
                               {14, kTo24, 1 << kTo112},
                               {20, kTo32, 1 << kTo112},
                               {28, kTo40, 1 << kTo112},
                               {38, kTo48, 1 << kTo24 | 1 << kTo112},
                               {52, kTo56, 1 << kTo24 | 1 << kTo112},
                               {62, kTo80, 1 << kTo24 | 1 << kTo56 | 1 << kTo160, 0},
                               {68, kTo80, 1 << kTo40 | 1 << kTo160},
                               {88, kTo80, 1 << kTo40 | 1 << kTo112 | 1 << kTo160},
                               {104, kTo112, 1 << kTo48 | 1 << kTo160}};
constexpr double kGatheredRows = 52, kManyRows = 104;
// Rows times row blocks, from which on pairs win: measured with 0.37, 0.74 and 1.5 million of gpt-oss gate and up, 0.1% slower
// (Zipf 2%), 1.8% and 2 to 3% faster.
constexpr double kPairedWork = 0.7e6;
// A gather takes 375 / weight rows of what the tiles behind it take, and they a tenth longer without it: measured with 768, 4096
// and 5760 weight rows.
constexpr int64_t kGatherWeights = 2500;
// What pairs can bring into order: where lists of experts leave room for it, a warp looks at all of k at once, and a tile's place
// in the list can be told, of which there are fewer than row blocks for each of its columns.
constexpr int kGatheredExperts = 512, kGatheredWidth = 10240;
constexpr int64_t kGatheredTiles = 1 << 23;
// Of the classes for the mean, where rows of x have to be fetched one by one and are not told apart by launches.
constexpr int kWidestAnywhere = kTo56;

int64_t ceil_blocks(int64_t width) { return (width + kFragmentWidth - 1) / kFragmentWidth; }

double work_for_pairs(const ExpertGemm::Problem& p) {
  return ExpertGemm::expected_rows(p) * static_cast<double>(ExpertGemm::fragments(p).row_blocks);
}
bool can_gather(const ExpertGemm::Problem& p) {
  return p.experts <= kGatheredExperts && p.width <= kGatheredWidth &&
         (p.rows / kClasses[kTo160].columns_most + p.experts) *
                 static_cast<int64_t>(ExpertGemm::fragments(p).row_blocks) <=
             kGatheredTiles;
}

// How rows come, a choice of the problem alone: rows of tokens are in order behind a gather in front. Rows that do not begin at
// multiples of 16 bytes are fetched by blocks alone in place of pairs.
RowsOfX gets_rows(const ExpertGemm::Problem& p) {
  if (p.slots == 0) return RowsOfX::kInOrder;
  const double rows = expert_load(p).rows_each;
  const bool many = ExpertGemm::weight_rows(p) >= kGatherWeights;
  if (rows > kManyRows && !many) return RowsOfX::kOfTokens;
  if (rows > kManyRows && work_for_pairs(p) >= kPairedWork)
    return can_gather(p) ? RowsOfX::kGathered : RowsOfX::kOfTokens;
  return rows > kGatheredRows && many ? RowsOfX::kInOrder : RowsOfX::kAnywhere;
}
bool gathers_in_front(const ExpertGemm::Problem& p) {
  return p.slots > 0 && gets_rows(p) == RowsOfX::kInOrder;
}
bool gathers_in_pairs(const ExpertGemm::Problem& p) { return gets_rows(p) == RowsOfX::kGathered; }
bool from_tokens(const ExpertGemm::Problem& p) { return gets_rows(p) == RowsOfX::kAnywhere; }
// Pairs that have rows of tokens from the first launch on, and those of x in order.
bool in_pairs(const ExpertGemm::Problem& p) {
  return gets_rows(p) == RowsOfX::kOfTokens || gathers_in_pairs(p);
}
bool in_pairs_in_order(const ExpertGemm::Problem& p) {
  return p.slots == 0 && expert_load(p).rows_each > kManyRows && work_for_pairs(p) >= kPairedWork;
}

// Of many rows an expert; `fewer`: the classes of experts that have less. The widest class cuts 161 rows into two tiles, and pads
// what is below 224: around such means experts of up to 192 rows have one tile, of a class of their own. Measured with means of
// 160 to 203 rows, uniform, both products: 3 to 15% faster (Zipf 1 to 2% slower); with 147 2.5% slower.
TilePlan plan_of_many(double mean, unsigned fewer, bool pairs) {
  constexpr double kOneTileFrom = 149, kOneTileTo = 207;
  constexpr double kAll = -10;  // deviations below the mean: classes of fewer rows serve all that they can
  if (pairs && mean > kOneTileFrom && mean <= kOneTileTo) return {1e30, kTo160, fewer | 1u << kTo192, kAll};
  return {1e30, kTo160, fewer};
}

// With those who fetch rows one by one beside them, ptxas has too few registers for two row blocks of 80 columns.
TilePlan plan_of(const ExpertGemm::Problem& p) {
  const double rows = expert_load(p).rows_each;
  const bool tokens = from_tokens(p);
  // Experts of few rows have tiles of a block alone.
  if (in_pairs(p)) return plan_of_many(rows, 1 << kTo48 | 1 << kTo112, true);
  const TilePlan* found = kPlans;
  while (found < std::end(kPlans) &&
         (rows > found->mean_most || ceil_blocks(p.width) % kClasses[found->first].k_blocks > 0 ||
          (tokens && found->first == kTo80)))
    ++found;
  if (found == std::end(kPlans)) return plan_of_many(rows, 1 << kTo80, in_pairs_in_order(p));
  TilePlan plan = *found;
  if (tokens && (plan.others >> kTo80 & 1)) plan.others ^= 1u << kTo80 | 1u << kTo112;
  return plan;
}

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_type(r, "w", p.w, DType::kE2M1, "dequantised in registers");
  return r;
}

// What uniform routing makes of the first launch: tiles, and us for one of them: its fragments, and its beginning and end.
// The last tile of an expert may have fewer row blocks, and counts by the warpgroups that have some.
struct TileWork {
  double tiles, each_us;
};
TileWork work_of(const ExpertGemm::Problem& p) {
  constexpr double kFragmentsOfBlock = 4, kEndsUs = 0.3, kFromTokens = 1.1;
  constexpr double kShortEndsUs = 4;  // over k blocks: with few of them the ring runs empty between tiles
  const ExpertLoad load = expert_load(p);
  const TileClass& c = kClasses[plan_of(p).first];
  const ColumnTiles tiles = column_tiles(load.rows_each, c.columns_least, c.columns_most);
  const auto row_blocks = static_cast<int64_t>(ExpertGemm::fragments(p).row_blocks);
  constexpr int kGroups = 3;
  const int64_t of_group = c.row_blocks / kGroups, group_rows = (row_blocks + of_group - 1) / of_group;
  const auto k_blocks = static_cast<double>(ceil_blocks(p.width));
  const double pace = c.pace * (load.rows_each > kGatheredRows && from_tokens(p) ? kFromTokens : 1);
  return {load.active * tiles.tiles * static_cast<double>(group_rows) / kGroups,
          k_blocks * c.row_blocks * kFragmentsOfBlock * pace * tile_fragment_ns(tiles.columns) / 1e3 +
              kEndsUs + kShortEndsUs / k_blocks};
}

// One launch: which tiles, for experts of how many rows.
struct TileLaunch {
  int which;  // of kClasses
  ExpertShare share;
};
struct TileLaunches {
  TileLaunch of[kClassCount];
  int count = 0;
};

// The launches of a problem. The first serves the experts that uniform routing makes, and all that no other does: where a
// class of more columns follows, few of its experts are cut, since each tile decodes the weights anew. Another launch costs
// some 2 us if it finds no expert and some 4 to begin, so others follow only where the first takes some 130 (of all SMs
// together), and where experts have rows enough to differ by more than a tile of the fewest columns has. With many rows an
// expert, those with few pay for columns that they have not, and tiles of fewer are worth it sooner.
TileLaunches launches_of(const ExpertGemm::Problem& p) {
  constexpr double kWorthUs = 17000, kNarrowerWorthUs = 8000, kRowsApart = 7, kManyRows = 100;
  const TilePlan plan = plan_of(p);
  const int first = plan.first;
  const double mean = expert_load(p).rows_each;
  const TileWork work = work_of(p);
  const double first_us = work.tiles * work.each_us;
  unsigned others = mean < kRowsApart ? 0 : plan.others;
  if (first_us < kWorthUs) others &= mean > kManyRows && first_us > kNarrowerWorthUs ? (1u << first) - 1 : 0;
  const unsigned classes = others | 1u << first;
  // With few tiles for each SM their order counts; with many, memory and products are better mixed as they come.
  constexpr double kFewTiles = 1300, kRowsOfOrder = 20;
  const ExpertOrder order =
      work.tiles < kFewTiles && mean > kRowsOfOrder ? ExpertOrder::kByWidth : ExpertOrder::kGiven;
  // Experts of uniform routing that have more rows than a tile of the first class are worth another launch if they make a round
  // of its tiles.
  constexpr double kRound = 132, kRowBlocks = 3;
  const double deviation = std::sqrt(mean), beyond = kClasses[first].columns_most + 0.5 - mean;
  const double cut = expert_load(p).active * std::erfc(beyond / deviation / std::sqrt(2)) / 2;
  const bool keeps = cut * static_cast<double>(ExpertGemm::fragments(p).row_blocks) < kRound * kRowBlocks;
  ExpertShare shares[kClassCount];
  int next = 1;  // the fewest rows that no class serves yet
  for (int c = 0; c < kClassCount; ++c) {
    shares[c].rows_most = 0;
    if (!(classes >> c & 1)) continue;
    int most = kClasses[c].columns_most;
    if (c == first && keeps) most = std::max(most, static_cast<int>(std::min(mean + 3 * deviation, 1e9)));
    if (c < first) most = static_cast<int>(std::min<double>(most, mean - plan.apart * deviation));
    if (!(classes >> (c + 1))) most = INT32_MAX;
    shares[c] = {next, most};
    next = std::max(next, most + (most < INT32_MAX));
  }
  TileLaunches out;
  const auto add = [&](int c) {
    if (shares[c].rows_most < shares[c].rows_least) return;
    shares[c].turn = out.count, shares[c].order = order;
    out.of[out.count++] = {c, shares[c]};
  };
  add(first);
  for (int c = kClassCount - 1; c >= 0; --c)
    if (c != first) add(c);
  return out;
}

std::string in_words(const ExpertGemm::Problem& p, const DeviceInfo&) {
  std::string out;
  const TileLaunches launches = launches_of(p);
  for (int i = 0; i < launches.count; ++i) {
    const auto& [which, share] = launches.of[i];
    const TileClass& c = kClasses[which];
    const bool pair = in_pairs(p) ? which >= kTo112 : in_pairs_in_order(p) && which >= kTo192;
    out += (i > 0  ? ", then "
            : pair ? "pairs of blocks, "
                   : "tiles of ") +
           std::to_string(64 * c.row_blocks * (pair ? 2 : 1)) + " x " + std::to_string(c.columns_least) +
           " to " + std::to_string(c.columns_most);
    if (launches.count == 1) continue;
    out +=
        " for experts of " + std::to_string(share.rows_least) +
        (share.rows_most == INT32_MAX ? " rows or more" : " to " + std::to_string(share.rows_most) + " rows");
  }
  if (gathers_in_front(p)) out += "; rows of x brought into order in front";
  if (gathers_in_pairs(p)) out += "; rows of x brought into order by them";
  if (from_tokens(p) || gets_rows(p) == RowsOfX::kOfTokens) out += "; rows of x fetched one by one";
  return out;
}

// Tiles go to whichever SM is free; while the last ones run, some SMs have none.
double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kStartUs = 5.0, kSettledUs = 1.5, kEndRounds = 0.3, kFollowUs = 2.0;
  const TileWork work = work_of(p);
  return kStartUs - (p.settled ? kSettledUs : 0) + (gathers_in_front(p) ? gather_us(p) : 0) +
         std::max(1., work.tiles / d.cores + kEndRounds) * work.each_us +
         kFollowUs * (launches_of(p).count - 1);
}

size_t workspace_bytes(const ExpertGemm::Problem& p, const DeviceInfo&) {
  return gathers_in_front(p) || gathers_in_pairs(p) ? gathered_bytes(p) : 0;
}

struct Launcher {
  static Status enqueue(const ExpertGemm::Problem&, const ExpertGemm::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_tile_sm90 = {
    .name = "cuda.expert_gemm.mxfp4_tile_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue_of<ExpertGemm, Launcher>(),
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
    .launches = in_words,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/kernels/expert_gemm_tile.cuh"

namespace sluice::cuda {
namespace {

template <RowsOfX kRows, int kGroups, int kBlocks, int kMost, int kFiner, int kLeast, int kSteps>
using Tiles = ExpertTiles<Mxfp4Blocks, kRows, kGroups, kBlocks, kMost, kFiner, kLeast, kSteps>;

// Pairs that have rows in order, or from tokens, or bring them into order by way of so many k blocks of each at once.
template <RowsOfX kRows, int kMost, int kLeast>
using Pairs = ExpertTiles<Mxfp4Blocks, kRows, 3, 1, kMost, 16, kLeast, 2, 1, /*kPaired=*/true,
                          kRows == RowsOfX::kGathered ? 5 : 0>;
using Pairs160Gathered = Pairs<RowsOfX::kGathered, 160, 112>;
static_assert(expert_shared<Pairs160Gathered>(kGatheredExperts).stages == 4);
static_assert(pair_gather_fits<Pairs160Gathered>(kGatheredExperts, kGatheredWidth));
static_assert(kGatheredTiles <= ExpertRing<Pairs160Gathered>::kIndexMost);

// gathered: memory for rows in order, where the launch is the one that brings them there.
template <RowsOfX kRows>
Status launch_class(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Stream stream,
                    const TileLaunch& how, void* gathered = nullptr) {
  const std::string_view name = expert_gemm_mxfp4_tile_sm90.name;
  constexpr RowsOfX kFew = kRows == RowsOfX::kOfTokens ? RowsOfX::kAnywhere : kRows;  // of a block alone
  switch (how.which) {
    case kTo16:
      return launch_tiles<Tiles<kFew, 3, 2, 16, 8, 8, 5>>(name, p, a, stream, how.share);
    case kTo24:
      return launch_tiles<Tiles<kFew, 3, 2, 24, 8, 8, 4>>(name, p, a, stream, how.share);
    case kTo32:
      return launch_tiles<Tiles<kFew, 3, 2, 32, 8, 16, 3>>(name, p, a, stream, how.share);
    case kTo40:
      return launch_tiles<Tiles<kFew, 3, 2, 40, 8, 24, 4>>(name, p, a, stream, how.share);
    case kTo48:
      return launch_tiles<Tiles<kFew, 3, 2, 48, 8, 32, 3>>(name, p, a, stream, how.share);
    case kTo56:
      return launch_tiles<Tiles<kFew, 3, 2, 56, 8, 40, 3>>(name, p, a, stream, how.share);
    case kTo80:  // a third width takes more registers than there are, and so do two of rows fetched one by one
      if constexpr (kRows != RowsOfX::kInOrder) break;
      return launch_tiles<Tiles<RowsOfX::kInOrder, 3, 2, 80, 16, 64, 3>>(name, p, a, stream, how.share);
    case kTo112:
      return launch_tiles<Tiles<kRows, 3, 1, 112, 16, 64, 3>>(name, p, a, stream, how.share);
    case kTo192:
      if constexpr (kRows == RowsOfX::kOfTokens || kRows == RowsOfX::kInOrder)
        return launch_tiles<Pairs<kRows, 192, 160>>(name, p, a, stream, how.share);
      [[fallthrough]];
    case kTo160:
      if constexpr (kRows == RowsOfX::kOfTokens)
        if (gathered) return launch_tiles<Pairs160Gathered>(name, p, a, stream, how.share, gathered);
      if constexpr (kRows == RowsOfX::kInOrder)
        if (in_pairs_in_order(p)) return launch_tiles<Pairs<kRows, 160, 112>>(name, p, a, stream, how.share);
      return launch_tiles<Tiles<kRows, 3, 1, 160, 16, 112, 2>>(name, p, a, stream, how.share);
    default:
      break;
  }
  return unsupported(std::string(name) + ": no tiles of class " + std::to_string(how.which));
}

template <RowsOfX kRows>
Status launch_all(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Stream stream,
                  void* gathered = nullptr) {
  const TileLaunches launches = launches_of(p);
  for (int i = 0; i < launches.count; ++i)
    SLUICE_TRY(launch_class<kRows>(p, a, stream, launches.of[i], i == 0 ? gathered : nullptr));
  return {};
}

Status Launcher::enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace w,
                         Stream stream) {
  if (p.rows == 0) return {};
  if (gathers_in_front(p)) {
    ExpertGemm::Args ordered = a;
    SLUICE_TRY(gather_rows(expert_gemm_mxfp4_tile_sm90.name, p, a, w.data, stream));
    ordered.x = make_tensor(w.data, DType::kBF16, {p.rows, p.width}, Backend::kCuda);
    return launch_all<RowsOfX::kInOrder>(p, ordered, stream);
  }
  if (in_pairs(p) && has_wide_rows(a.x))
    return launch_all<RowsOfX::kOfTokens>(p, a, stream, gathers_in_pairs(p) ? w.data : nullptr);
  if (p.slots > 0) return launch_all<RowsOfX::kAnywhere>(p, a, stream);
  if (has_wide_rows(a.x)) return launch_all<RowsOfX::kInOrder>(p, a, stream);
  return launch_class<RowsOfX::kAnywhere>(p, a, stream, {std::min(plan_of(p).first, kWidestAnywhere), {}});
}

}  // namespace

}  // namespace sluice::cuda
#endif
