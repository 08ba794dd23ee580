#include "backends/cuda/router/router_gemm_tile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "backends/cuda/router/router_gemm_tile_measured.h"

namespace sluice::cuda {
namespace {

constexpr int kStagesMin = 3, kStagesMax = 16;
constexpr int kBlockMemory = 227 << 10;
constexpr int kBlocksMax = 8;               // CTAs per cluster that are portable
constexpr int kRowBytes = 2 * kRouterStep;  // bytes of a row of x or of bf16 w in a stage

int div_up(int64_t n, int64_t by) { return static_cast<int>((n + by - 1) / by); }

// Fitted to 1900 measurements of 72 problems on an H200, in which the fastest plans of a problem weigh more; 7% off on average.
constexpr double kLaunchUs = 0.83;       // includes the time to the first bytes and after the last
constexpr double kClusterUs = 1.25;      // added if CTAs of a cluster wait for each other
constexpr double kWaveUs = 5.1;          // per wave of CTAs after the first
constexpr double kStepUs = 0.141;        // per step of k, if nothing else takes longer
constexpr double kWeightsPerUs = 112e3;  // rate at which one CTA loads w
constexpr double kTokensPerUs = 88e3;    // rate at which one CTA loads x
constexpr double kMemoryPerUs =
    3.8e6;  // rate at which all CTAs load x from L2 or memory, with each byte counted once
constexpr double kTensorPerUs = 1256;  // clock rate of an SM's tensor cores under load
constexpr double kPeerExchangeUs =
    0.59;  // exchange of partial sums: fixed time; below, bytes that a CTA exchanges with its peers
constexpr double kExchangePerUs = 15.9e3;

double plan_us(const RouterGemm::Problem& p, const RouterTilePlan& plan) {
  const RouterTile& t = plan.tile;
  const int64_t clusters = int64_t{1} * div_up(div_up(p.experts, t.experts()), plan.beside) *
                           div_up(div_up(p.tokens, t.tokens), plan.behind);
  const double waves = div_up(clusters, router_resident_clusters(plan.blocks())),
               steps = div_up(div_up(p.hidden, kRouterStep), plan.splits);
  const double weights = static_cast<double>(std::min<int64_t>(t.experts(), p.experts)) / plan.behind,
               tokens = static_cast<double>(t.tokens) / plan.beside;
  const double fill = kRowBytes * (weights / kWeightsPerUs + tokens / kTokensPerUs);
  const double tensor = 4 * t.groups * (t.tokens / 2.0) / kTensorPerUs;  // a wgmma takes N / 2 clocks
  const double memory = 2.0 * static_cast<double>(p.tokens * p.hidden) / kMemoryPerUs / waves;
  const double parts = static_cast<double>(plan.splits - 1) / plan.splits;
  const double exchange =
      plan.splits > 1 ? kPeerExchangeUs + parts * t.experts() * t.tokens * sizeof(float) / kExchangePerUs : 0;
  return kLaunchUs + (plan.blocks() > 1 ? kClusterUs : 0) + (waves - 1) * kWaveUs +
         waves * (std::max(steps * std::max({kStepUs, fill, tensor}), memory) + exchange);
}

// Rows of w in a stage: at least the problem's rows, and enough that no warpgroup reads past the end of the stage.
int weight_rows(const RouterGemm::Problem& p, const RouterTile& t) {
  constexpr int kRows = 32;
  return std::min(t.experts(), kRows * div_up(std::max<int64_t>(p.experts, t.experts() - t.tokens), kRows));
}

}  // namespace

int router_resident_clusters(int blocks) {
  constexpr int kResident[] = {132, 66, 39, 30, 22, 17, 15, 15};
  return kResident[blocks - 1];
}

RouterTileMemory tile_memory(const RouterGemm::Problem& p, const RouterTilePlan& plan) {
  const RouterTile& t = plan.tile;
  const int steps = div_up(p.hidden, kRouterStep), part = div_up(steps, plan.splits),
            stages_max = std::min(kStagesMax, part);
  RouterTileMemory m;
  // Rows of f32 weights past the last expert need memory too, because threads read them.
  const int rows = p.w == DType::kF32 ? t.experts() : weight_rows(p, t);
  m.weight_bytes = router_boxes(p.w) * rows * kRowBytes;
  m.stage_bytes = m.weight_bytes + t.tokens * kRowBytes;
  const int row = (t.experts() + 4) * static_cast<int>(sizeof(float));  // the sums of one token
  const int sums = t.tokens * row, inbox = (plan.splits - 1) * div_up(t.tokens, plan.splits) * row;
  const int barrier_bytes = (2 * kStagesMax + 1) * static_cast<int>(sizeof(uint64_t));
  const int limit = kBlockMemory - barrier_bytes - inbox;
  const auto power_of_two = [](int n) { return (n & (n - 1)) == 0; };
  const bool shares = plan.blocks() <= kBlocksMax && power_of_two(plan.beside) && power_of_two(plan.behind) &&
                      t.tokens % (8 * plan.beside) == 0 && rows % (8 * plan.behind) == 0;
  if (!shares || plan.splits > steps || sums > limit ||
      limit < std::min(kStagesMin, stages_max) * m.stage_bytes)
    return {};
  m.stages = std::min(limit / m.stage_bytes, stages_max);
  m.inbox_offset = std::max(m.stages * m.stage_bytes, sums);
  m.barriers_offset = m.inbox_offset + inbox;
  m.bytes = m.barriers_offset + barrier_bytes;
  return m;
}

namespace {

// A measured problem: the logarithms of its sizes, and the model's time for the fastest measured plan.
struct Near {
  double model_us, hidden, experts, tokens;
  double doublings_to(const Near& o) const {
    return std::abs(hidden - o.hidden) + std::abs(experts - o.experts) + std::abs(tokens - o.tokens);
  }
};
Near near(const RouterGemm::Problem& p, double model_us) {
  const auto log = [](int64_t n) { return std::log2(static_cast<double>(n)); };
  return {model_us, log(p.hidden), log(p.experts), log(p.tokens)};
}

constexpr size_t kMeasured = std::size(kRouterTilesMeasured);
std::array<Near, kMeasured> measured() {
  std::array<Near, kMeasured> all;
  for (size_t i = 0; i < kMeasured; ++i) {
    const RouterTileMeasured& m = kRouterTilesMeasured[i];
    const RouterGemm::Problem p{.tokens = m.tokens, .experts = m.experts, .hidden = m.hidden};
    all[i] = near(p, plan_us(p, m.plan));
  }
  return all;
}

}  // namespace

// On its own the model chooses plans that are 7% slower than the fastest. It does not know how much time CTAs save by
// reading the same cache lines at the same time. So it only extrapolates: each nearby measured problem
// contributes its fastest plan, with its measured time times the ratio of the model's times for this problem and for
// that one. A penalty grows with the distance. If the token counts differ, the same plan with tiles of other widths is a
// candidate, too. If each measured problem is left out in turn, the choice for it is 1.4% slower than the fastest plan on average.
std::vector<Config> router_tile_configs(const RouterGemm::Problem& wanted, double best_us) {
  constexpr double kDoubtPerDoubling = 0.6, kDoubtOfOtherTile = 0.1, kSameTokens = 0.15, kFurther = 1.0;
  static const std::array<Near, kMeasured> problems = measured();
  // The smallest measured token count. Problems with fewer tokens get the plans for this many.
  constexpr int64_t kFewestTokens = 192;
  const RouterGemm::Problem p = RouterGemm::at_tokens(wanted, std::max(wanted.tokens, kFewestTokens));
  const Near here = near(p, 0);
  double nearest = problems[0].doublings_to(here);
  for (const Near& n : problems) nearest = std::min(nearest, n.doublings_to(here));
  struct Offer {
    RouterTilePlan plan;
    double us;  // expected time, including the penalty
  };
  std::vector<Offer> offers;
  const auto consider = [&](const RouterTilePlan& plan, double us, double doubt) {
    if (tile_memory(p, plan).stages == 0) return;
    const double doubted = us * (1 + doubt);
    for (Offer& offer : offers)
      if (offer.plan == plan) return void(offer.us = std::min(offer.us, doubted));
    offers.push_back({plan, doubted});
  };
  for (size_t i = 0; i < kMeasured; ++i) {
    const RouterTileMeasured& m = kRouterTilesMeasured[i];
    const double away = problems[i].doublings_to(here), ratio = m.us / problems[i].model_us;
    if (away > nearest + kFurther) continue;
    const double doubt = kDoubtPerDoubling * away;
    consider(m.plan, ratio * plan_us(p, m.plan), doubt);
    if (std::abs(problems[i].tokens - here.tokens) <= kSameTokens) continue;
    for (const RouterTile& tile : kRouterTiles) {
      if (tile.groups != m.plan.tile.groups) continue;
      RouterTilePlan plan = m.plan;
      plan.tile = tile;
      consider(plan, ratio * plan_us(p, plan), doubt + kDoubtOfOtherTile);
    }
  }
  if (offers.empty()) offers.push_back({{}, 1});  // hidden is too small for the splits of all nearby plans
  std::stable_sort(offers.begin(), offers.end(), [](const Offer& a, const Offer& b) { return a.us < b.us; });
  constexpr double kNearTheBest = 1.25;
  std::vector<Config> out;
  for (const auto& [plan, us] : offers) {
    const double share = us / offers.front().us;
    if (share > kNearTheBest) break;
    out.push_back(
        {.name = router_tile_name(plan), .cost_us = best_us * share, .launches = {router_tile_launch(plan)}});
  }
  return out;
}

// "128x64-k2-e1-t4": experts x tokens per CTA, then splits of k, tiles of experts and tiles of tokens per cluster.
std::string router_tile_name(const RouterTilePlan& plan) {
  return std::to_string(plan.tile.experts()) + "x" + std::to_string(plan.tile.tokens) + "-k" +
         std::to_string(plan.splits) + "-e" + std::to_string(plan.beside) + "-t" +
         std::to_string(plan.behind) + (plan.exchange == RouterExchange::kCopies ? "" : "-stores");
}

KernelLaunch router_tile_launch(const RouterTilePlan& plan) {
  return {.value = {plan.tile.groups, plan.tile.tokens, plan.splits, plan.beside, plan.behind,
                    static_cast<int32_t>(plan.exchange)}};
}

RouterTilePlan router_tile_plan(const KernelLaunch& launch) {
  const auto& v = launch.value;
  return {{v[0], v[1]}, v[2], v[3], v[4], static_cast<RouterExchange>(v[5])};
}

std::string router_tile_text(const RouterGemm::Problem&, const KernelLaunch& launch) {
  const RouterTilePlan plan = router_tile_plan(launch);
  return "tiles of " + std::to_string(plan.tile.experts()) + " experts x " +
         std::to_string(plan.tile.tokens) + " tokens; a cluster is " + std::to_string(plan.splits) +
         " splits of k x " + std::to_string(plan.beside) + " tiles of experts x " +
         std::to_string(plan.behind) + " tiles of tokens; partial sums by " +
         (plan.exchange == RouterExchange::kCopies ? "bulk copies" : "stores");
}

}  // namespace sluice::cuda
