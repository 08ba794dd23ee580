// Router GEMM and routing of few tokens in one launch (router_route_fewtokens.cuh):
// the compiled kernels, and what their descriptors have in common.
#pragma once
#include <algorithm>
#include <iterator>

#include "backends/cuda/card.h"
#include "backends/cuda/grid_words.h"
#include "backends/cuda/tile/team.h"
#include "ops/fused/router_route.h"

namespace sluice::cuda::few {

constexpr int kUnit = 32;  // elements of a row that four lanes load together

// k is split over `split` CTAs, and then over their `warps` warps; a warp loads `flight`
// units of a row, all at once. The tile of a CTA is 8 * rows tokens x 8 * columns experts.
struct Cut {
  int rows, columns, split, warps, flight;
  constexpr int64_t hidden_max() const { return int64_t{kUnit} * split * warps * flight; }
};
enum class Blocks { kCluster, kGrid };

constexpr int64_t kTokensMax = 64;  // maximum number of tokens of any instance
// Words in Queue::grid_words per token and split for sums of squares. A sum is written twice: to a word
// that the choosing threads read and reset, and to a word that the normalizing threads read and reset.
constexpr int kSquareWords = 2;

// The compiled kernels, and the problems that each accepts. Costs were measured on an H200 with plain launches and weights not in L2.
struct Instance {
  int experts, list;
  tile::TeamKind kind;
  Blocks blocks;
  Cut cut;
  int64_t tokens;            // at most
  double first_us, more_us;  // cost of one token; of each further token

  bool serves(const RouterRoute::Problem& p) const {
    return tile::team_serves(p.route, experts, list, kind) && p.hidden <= cut.hidden_max() &&
           p.route.tokens <= tokens;
  }
  // Words that the instance needs in Queue::grid_words, after the first kGridWordsBytes bytes.
  constexpr int64_t words() const { return tokens * int64_t{cut.split} * (experts + kSquareWords); }
};

// Instances of the same kind and number of experts split k in the same way,
// whatever their tiles, so the results do not depend on the number of tokens.
constexpr Instance kInstances[] = {
    {32, 4, tile::kSoftmaxOfChosen, Blocks::kCluster, {1, 4, 16, 6, 1}, kTokensMax, 2.40, 0.006},
    {128, 4, tile::kSoftmaxOfChosen, Blocks::kGrid, {1, 1, 8, 12, 1}, 16, 2.84, 0.017},
    {128, 4, tile::kSoftmaxOfChosen, Blocks::kGrid, {2, 2, 8, 12, 1}, kTokensMax, 2.84, 0.013},
    {128, 8, tile::kSoftmaxRenormalized, Blocks::kGrid, {1, 1, 8, 12, 1}, 16, 2.94, 0.015},
    {128, 8, tile::kSoftmaxRenormalized, Blocks::kGrid, {2, 2, 8, 12, 1}, kTokensMax, 3.05, 0.010},
    {256, 8, tile::kGroupedSigmoid, Blocks::kGrid, {1, 1, 4, 14, 4}, 8, 3.95, 0.060},
    {256, 8, tile::kGroupedSigmoid, Blocks::kGrid, {1, 2, 4, 14, 4}, 16, 4.26, 0.050},
    {256, 8, tile::kBiasedSoftplus, Blocks::kGrid, {1, 1, 4, 16, 2}, 8, 3.65, 0.030},
    {256, 8, tile::kBiasedSoftplus, Blocks::kGrid, {2, 2, 4, 16, 2}, 32, 3.42, 0.045},
    {384, 8, tile::kBiasedSoftplus, Blocks::kGrid, {1, 1, 2, 16, 7}, 8, 5.04, 0.097},
};

static_assert(std::ranges::all_of(kInstances, [](const Instance& i) {
  return i.words() * int64_t{sizeof(uint32_t)} <= int64_t{kGridSumBytes};
}));

inline const Instance* instance_for(const RouterRoute::Problem& p) {
  for (const Instance& i : kInstances)
    if (i.serves(p)) return &i;
  return nullptr;
}

inline void need_few(Refusal& r, const RouterRoute::Problem& p, const DeviceInfo& d) {
  need_sm90(r, d);
  need_type(r, "x", p.x, DType::kBF16, "operand of the tensor cores");
  need_type(r, "w", p.w, DType::kBF16, "operand of the tensor cores");
  need_multiple(r, "hidden", p.hidden, 8, "16-byte chunks of a row");
  r.need(p.hidden >= 128, "hidden >= 128 (shorter sums may miss their bound on tensor cores)", "hidden",
         p.hidden);
  int64_t tokens = 0, hidden = 0;
  for (const Instance& i : kInstances) {
    if (!tile::team_serves(p.route, i.experts, i.list, i.kind)) continue;
    tokens = std::max(tokens, i.tokens);
    hidden = i.cut.hidden_max();
  }
  Refusal team;
  tile::need_team(team, p.route, tokens > 0 ? tokens : kTokensMax);
  // if not, the refusal below names the rule and the experts
  const bool known = tokens > 0 || !team.accepted();
  r.append(team);
  r.need(known, "a routing rule and number of experts for which the fused router kernel is compiled",
         "method=" + std::string(word(p.route.method)) + " experts=" + std::to_string(p.route.experts));
  if (tokens == 0) return;
  r.need(p.hidden <= hidden, "hidden <= " + std::to_string(hidden) + " (all of a row is in flight at once)",
         "hidden", p.hidden);
}

inline double few_us(const RouterRoute::Problem& p) {
  const Instance* i = instance_for(p);
  const double others = static_cast<double>(std::max<int64_t>(p.route.tokens, 1) - 1);
  return i ? i->first_us + others * i->more_us : 1e3 * (1 + others);
}

}  // namespace sluice::cuda::few
