// The configurations of the tile kernels for a problem: the possible sequences of launches, and the experts that each launch computes.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "backends/cuda/experts/cost/cost.h"

namespace sluice::cuda {
namespace {

// Where the launches of a configuration get rows of x from, and the suffix that this adds to the configuration's name. With an x in FP8
// these are the rounded rows.
enum class Rows { kAsTheyAre, kOrdered, kThreads, kBoxes, kGathered };
constexpr std::string_view kSuffixes[] = {"", ".ordered", ".threads", ".boxes", ".gathered"};

// Kernels that divide the experts by their number of rows, in ascending order. A kernel computes experts with up to tile_n rows; the last
// one also computes all larger experts. n: the tile_n of each kernel, negative for CTA pairs. Kernel `first` computes experts with about
// the mean number of rows and is launched first. Then come the kernels for more rows, in descending order, then the kernels for fewer rows.
struct Ladder {
  std::array<int, 4> n{};
  int first = 0;
  // Experts with fewer rows than the mean minus this many standard deviations go
  // to the kernels before `first`. Experts nearer to the mean stay with `first`,
  // because even a launch that computes few experts costs its start and its end.
  double deviations = 3;

  int size() const {
    int count = 0;
    while (count < 4 && n[static_cast<size_t>(count)] != 0) ++count;
    return count;
  }
};
constexpr double kAll = -10;  // kernels before `first` get every expert with at most tile_n rows
constexpr Ladder kSingles[] = {{{16}},
                               {{24}},
                               {{32}},
                               {{40}},
                               {{48}},
                               {{56}},
                               {{80}},
                               {{112}},
                               {{160}},
                               {{16, 112}},
                               {{24, 112}},
                               {{32, 112}},
                               {{40, 112}},
                               {{24, 48, 112}, 1},
                               {{24, 56, 112}, 1},
                               {{24, 56, 80, 160}, 2, 0},
                               {{24, 56, 112, 160}, 2, 0},
                               {{40, 80, 160}, 1},
                               {{40, 80, 112, 160}, 1},
                               {{40, 112, 160}, 1},
                               {{48, 112, 160}, 1},
                               {{48, 112}, 1},
                               {{80, 160}, 1},
                               {{112, 160}, 1},
                               {{48, 160}, 1}};
constexpr Ladder kPairsInOrder[] = {{{-160}}, {{80, -160}, 1}, {{80, -192, -160}, 2, kAll}, {{112, -160}, 1}};
constexpr Ladder kPairsOfTokens[] = {
    {{-160}}, {{-112, -160}, 1}, {{48, -112, -160}, 2}, {{48, -112, -192, -160}, 3, kAll}};

// For the formats that use kDecodedTiles.
constexpr Ladder kDecodedSingles[] = {
    {{64}}, {{112}}, {{160}}, {{64, 112}, 1}, {{64, 160}, 1}, {{64, 112, 160}, 1}, {{112, 160}, 1}};
constexpr Ladder kDecodedPairs[] = {{{-160}}, {{64, -160}, 1}, {{112, -160}, 1}, {{64, 112, -160}, 2}};

// The index in tile_kernels() of the kernel with tile_n = |n| (pairs if
// n < 0) and this source of rows, or -1 if no such kernel is compiled.
int kernel_of(WeightFormat f, int n, Rows rows, bool first) {
  const bool pair = n < 0;
  const XSource x = rows == Rows::kAsTheyAre || rows == Rows::kOrdered ? XSource::kInOrder
                    : rows == Rows::kThreads || !pair                  ? XSource::kThreads
                    : rows == Rows::kGathered && first                 ? XSource::kGathered
                                                                       : XSource::kRowBoxes;
  const auto kernels = tile_kernels(f);
  for (size_t i = 0; i < kernels.size(); ++i)
    if (kernels[i].n_max == std::abs(n) && (kernels[i].ctas() == 2) == pair && kernels[i].x == x)
      return static_cast<int>(i);
  return -1;
}

std::string tile_name(const TileKernel& k) {
  return (k.ctas() == 2 ? "pair" : "") + std::to_string(k.rows_of_weights()) + "x" +
         std::to_string(k.rows_of_x());
}

double mean_rows(const ExpertGemm::Problem& p) {
  const double rows = ExpertGemm::expected_rows(p), active = active_experts(rows, p.experts);
  return active > 0 ? rows / active : 0;
}

// kByWidth needs one thread of the CTA per expert, and tile counts of at most 16 bits.
ExpertOrder order_of(const ExpertGemm::Problem& p, const TileKernel& k, double mean, double tiles) {
  const int64_t threads = p.w != DType::kBF16 ? 128 * (k.groups(true) + 1) : 384;
  if (p.experts > threads || p.rows / k.n_max + p.experts > UINT16_MAX) return ExpertOrder::kLong;
  // If SMs have few tiles each, the order matters. With many mxfp4 tiles, the given order mixes memory-bound and compute-bound tiles better.
  constexpr double kFewTiles = 1300, kRowsOfOrder = 20;
  if (p.w == DType::kBF16) return k.ctas() == 2 ? ExpertOrder::kByWidth : ExpertOrder::kGiven;
  return tiles < kFewTiles && mean > kRowsOfOrder ? ExpertOrder::kByWidth : ExpertOrder::kGiven;
}

// The number of tiles if every active expert had the mean number of rows.
double tiles_of(const ExpertGemm::Problem& p, const TileKernel& k, double mean) {
  const double active = active_experts(ExpertGemm::expected_rows(p), p.experts);
  return active * std::max(1.0, std::ceil(mean / k.rows_of_x())) *
         std::ceil(static_cast<double>(ExpertGemm::fragments(p).row_blocks) * 64 /
                   static_cast<double>(k.rows_of_weights()));
}

// The launch before the kernels' own, which prepares rows of x; 0: none.
int first_launch(const ExpertGemm::Problem& p, Rows rows) {
  if (p.x == DType::kE4M3)
    return rows == Rows::kOrdered ? TileLaunch::kQuantizeOrdered : TileLaunch::kQuantizeRows;
  return rows == Rows::kOrdered ? TileLaunch::kOrderRows : 0;
}

// The launches of a ladder, or none if one of its kernels is not compiled for this source of rows.
std::vector<TileLaunch> launches_of(const ExpertGemm::Problem& p, const DeviceInfo& d, const Ladder& ladder,
                                    Rows rows) {
  const double mean = mean_rows(p), deviation = std::sqrt(mean);
  const int count = ladder.size();
  std::vector<TileLaunch> steps(static_cast<size_t>(count));
  int next = 1;  // the smallest row count that no kernel covers yet
  for (int i = 0; i < count; ++i) {
    const int kernel =
        kernel_of(ExpertGemm::format(p), ladder.n[static_cast<size_t>(i)], rows, i == ladder.first);
    if (kernel < 0) return {};
    const TileKernel& k = tile_kernels(p)[static_cast<size_t>(kernel)];
    double row_limit = k.n_max;
    if (i < ladder.first) row_limit = std::min(row_limit, mean - ladder.deviations * deviation);
    if (i == ladder.first && i + 1 < count) {
      // Experts with slightly more rows than kernel `first` computes in one tile
      // get a separate launch only if they fill a few rounds of its tiles.
      const double active = active_experts(ExpertGemm::expected_rows(p), p.experts);
      const double beyond = active * std::erfc((row_limit + 0.5 - mean) / deviation / std::sqrt(2)) / 2;
      constexpr double kRowBlocks = 3;
      if (beyond * static_cast<double>(ExpertGemm::fragments(p).row_blocks) < d.cores * kRowBlocks)
        row_limit = std::max(row_limit, mean + 3 * deviation);
    }
    // A multiple of 8, so that plans for neighboring token counts are often equal.
    const int rows_max =
        i + 1 == count ? INT32_MAX : static_cast<int>(std::clamp(std::floor(row_limit / 8) * 8, 0.0, 1e9));
    TileLaunch& step = steps[static_cast<size_t>(i)];
    step.kernel = kernel, step.rows_min = next, step.rows_max = rows_max;
    next = std::max(next, rows_max + (rows_max < INT32_MAX));
  }
  std::vector<TileLaunch> out;
  if (rows == Rows::kOrdered) out.push_back({.kernel = TileLaunch::kOrderRows});
  const TileKernel& first =
      tile_kernels(p)[static_cast<size_t>(steps[static_cast<size_t>(ladder.first)].kernel)];
  const ExpertOrder order = order_of(p, first, mean, tiles_of(p, first, mean));
  int index = 0;
  const auto add = [&](int i) {
    TileLaunch& step = steps[static_cast<size_t>(i)];
    if (step.rows_max < step.rows_min) return;
    step.index = index++, step.order = order;
    out.push_back(step);
  };
  add(ladder.first);
  for (int i = count - 1; i >= 0; --i)
    if (i != ladder.first) add(i);
  return out;
}

// Adds the conditions under which CTA pairs can gather: shared memory has room for the lists of experts, the lanes
// of one warp cover all segments of k, and a queued tile's word has room for its list index and its rows.
void need_gather(Refusal& r, const ExpertGemm::Problem& p) {
  const bool decodes = p.w != DType::kBF16;
  const int64_t experts = decodes ? 512 : 256, width = decodes ? 10240 : 16384;
  constexpr int64_t kTilesMax = 1 << 22;
  // Measured: a gather takes about 375 / weight_rows of the time of the tiles that use its rows.
  constexpr int64_t kWeightRows = 1024;
  r.need(ExpertGemm::weight_rows(p) >= kWeightRows,
         "at least 1024 weight rows (all of them reuse a copied row of x)", "weight rows",
         ExpertGemm::weight_rows(p));
  r.need(p.experts <= experts, "experts <= " + std::to_string(experts) + " (lists in shared memory)",
         "experts", p.experts);
  r.need(p.width <= width, "width <= " + std::to_string(width) + " (a lane for each chunk of it)", "width",
         p.width);
  const int64_t tiles = (p.rows / 160 + p.experts) * ExpertGemm::fragments(p).row_blocks;
  r.need(tiles <= kTilesMax, "at most 2^22 tiles (a tile's place is published in 23 bits)", "tiles", tiles);
}

// True if this source fits the problem's rows, apart from alignment.
bool applies(const ExpertGemm::Problem& p, Rows rows) {
  return rows == Rows::kThreads || (rows == Rows::kAsTheyAre) == (p.slots == 0);
}

// Why this source of rows cannot be used.
Refusal refusal_of(const ExpertGemm::Problem& p, Rows rows) {
  Refusal r;
  if (p.x == DType::kE4M3) return r;  // the rounded rows are aligned
  if (rows == Rows::kAsTheyAre || rows == Rows::kBoxes || rows == Rows::kGathered)
    r.need(!p.x_unaligned, "x_unaligned=0 (TMA boxes)", "x_unaligned=1");
  if (rows == Rows::kGathered) need_gather(r, p);
  return r;
}

class Lister {
 public:
  Lister(const ExpertGemm::Problem& problem, const DeviceInfo& device)
      : p_(problem),
        d_(device),
        uniform_(tile_constants_of(problem), problem, uniform_profile(problem)),
        zipf_(tile_constants_of(problem), problem, zipf_profile(problem)) {}

  void add(const Ladder& ladder, Rows rows) {
    if (applies(p_, rows)) add(launches_of(p_, d_, ladder, rows), rows, {});
  }
  // One kernel that computes all experts.
  void add(int kernel, Rows rows, std::string_view more = {}) {
    if (!applies(p_, rows)) return;
    std::vector<TileLaunch> launches;
    if (const int prepares = first_launch(p_, rows); prepares < 0) launches.push_back({.kernel = prepares});
    const TileKernel& k = tile_kernels(p_)[static_cast<size_t>(kernel)];
    const ExpertOrder order = expert_order(p_, k);
    launches.push_back({.kernel = kernel, .order = order});
    add(std::move(launches), rows, more);
  }
  std::vector<Config> take() { return std::move(out_); }

 private:
  void add(const std::vector<TileLaunch>& launches, Rows rows, std::string_view more) {
    if (launches.empty()) return;
    Config one;
    bool gathers = false;
    for (const TileLaunch& launch : launches) {
      one.launches.push_back(launch.launch());
      if (launch.kernel < 0) continue;
      const TileKernel& k = tile_kernels(p_)[static_cast<size_t>(launch.kernel)];
      gathers |= k.x == XSource::kGathered;
      one.name += (one.name.empty() ? "" : "+") + tile_name(k);
    }
    one.name += more;
    one.name += kSuffixes[static_cast<size_t>(rows)];
    for (const Config& before : out_)
      // If no experts are left for the other kernels of a ladder, it equals an earlier configuration.
      if (before.name == one.name) return;
    one.refusal = refusal_of(p_, rows);
    if (one.refusal.accepted()) {
      one.cost_us = tile_cost_us(&uniform_, &zipf_, d_, launches);
      one.workspace_bytes = p_.x == DType::kE4M3                ? fp8_bytes(p_, rows == Rows::kOrdered)
                            : gathers || rows == Rows::kOrdered ? ordered_bytes(p_)
                                                                : 0;
    }
    out_.push_back(std::move(one));
  }

  const ExpertGemm::Problem& p_;
  const DeviceInfo& d_;
  TileWorks uniform_, zipf_;
  std::vector<Config> out_;
};

}  // namespace

std::vector<Config> tile_configs(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Lister list(p, d);
  const WeightFormat f = ExpertGemm::format(p);
  if (p.x == DType::kE4M3) {
    for (int kernel = 0; kernel < static_cast<int>(tile_kernels(p).size()); ++kernel) {
      const bool threads = tile_kernels(p)[static_cast<size_t>(kernel)].x == XSource::kThreads;
      for (const Rows rows : {Rows::kAsTheyAre, Rows::kOrdered, Rows::kThreads})
        if (threads == (rows == Rows::kThreads)) list.add(kernel, rows);
    }
    return list.take();
  }
  if (f.scaled() && f != WeightFormat{DType::kE2M1}) {
    for (const Ladder& ladder : kDecodedSingles) list.add(ladder, Rows::kThreads);
    for (const Ladder& ladder : kDecodedPairs) list.add(ladder, Rows::kBoxes);
    // Rows are copied into y's order only for CTA pairs: every single-CTA kernel has a variant whose threads copy them.
    for (const Rows rows : {Rows::kAsTheyAre, Rows::kOrdered}) list.add(kDecodedPairs[0], rows);
    return list.take();
  }
  if (f.scaled()) {
    for (const Rows rows : {Rows::kAsTheyAre, Rows::kOrdered, Rows::kThreads})
      for (const Ladder& ladder : kSingles) list.add(ladder, rows);
    for (const Rows rows : {Rows::kAsTheyAre, Rows::kOrdered})
      for (const Ladder& ladder : kPairsInOrder) list.add(ladder, rows);
    for (const Rows rows : {Rows::kBoxes, Rows::kGathered})
      for (const Ladder& ladder : kPairsOfTokens) list.add(ladder, rows);
    return list.take();
  }
  for (size_t i = 0; i < std::size(kBf16Tiles); ++i) {
    const TileKernel& k = kBf16Tiles[i];
    const int kernel = static_cast<int>(i);
    // If two kernels differ only in the step of tile_n, the name of the one with the finer step has a suffix.
    const std::string_view finer = k.x == XSource::kRowBoxes && k.n_step == 8 ? "/8" : "";
    switch (k.x) {
      case XSource::kInOrder:
        list.add(kernel, Rows::kAsTheyAre);
        list.add(kernel, Rows::kOrdered);
        break;
      case XSource::kThreads:
        list.add(kernel, Rows::kThreads);
        break;
      case XSource::kRowBoxes:
        list.add(kernel, Rows::kBoxes, finer);
        break;
      case XSource::kGathered:
        list.add(kernel, Rows::kGathered);
        break;
    }
  }
  return list.take();
}

ExpertOrder expert_order(const ExpertGemm::Problem& p, const TileKernel& k) {
  const double mean = mean_rows(p);
  return order_of(p, k, mean, tiles_of(p, k, mean));
}

std::string tile_launch_text(const ExpertGemm::Problem& p, const KernelLaunch& of) {
  const TileLaunch launch = TileLaunch::of(of);
  if (launch.kernel == TileLaunch::kOrderRows) return "rows of tokens copied into order";
  if (launch.kernel == TileLaunch::kQuantizeRows) return "rows of x rounded to FP8";
  if (launch.kernel == TileLaunch::kQuantizeOrdered) return "rows of tokens rounded to FP8, in order";
  const TileKernel& k = tile_kernels(p)[static_cast<size_t>(launch.kernel)];
  constexpr std::string_view kRows[] = {"rows of x in order", "rows of tokens gathered by the CTA pairs",
                                        "one TMA box per row of x", "rows of x by producer threads"};
  const int factor = k.rows_of_x() / k.n_max;
  std::string out = k.ctas() == 2 ? "CTA pairs, tiles of " : "tiles of ";
  out += std::to_string(k.rows_of_weights()) + " x " + std::to_string(k.n_min * factor) + " to " +
         std::to_string(k.rows_of_x());
  if (launch.rows_min > 1 || launch.rows_max < INT32_MAX)
    out +=
        " for experts of " + std::to_string(launch.rows_min) +
        (launch.rows_max == INT32_MAX ? " rows or more" : " to " + std::to_string(launch.rows_max) + " rows");
  out += "; ";
  out += kRows[static_cast<size_t>(k.x)];
  if (launch.order == ExpertOrder::kByWidth) out += "; the widest tiles first";
  return out;
}

std::string stream_launch_text(const ExpertGemm::Problem& p, const KernelLaunch& of) {
  const StreamLaunch launch = StreamLaunch::of(of);
  if (p.w == DType::kBF16 && !launch.short_sums)
    return "tiles of " + launch.name(p.w) + ", the whole sum; rows of x by producer threads";
  return "units of 64 weight rows x " + std::to_string(launch.columns) + " rows of x, the whole sum" +
         (launch.short_sums ? "; teams keep rows of x for several units" : "");
}

size_t ordered_bytes(const ExpertGemm::Problem& p) { return static_cast<size_t>(p.rows * p.width) * 2; }
int64_t fp8_row_bytes(const ExpertGemm::Problem& p) { return round_up(p.width, 128); }
size_t fp8_bytes(const ExpertGemm::Problem& p, bool orders) {
  const int64_t rows = p.slots > 0 && !orders ? p.tokens : p.rows;
  return static_cast<size_t>(rows * (fp8_row_bytes(p) + static_cast<int64_t>(sizeof(float))));
}

}  // namespace sluice::cuda
