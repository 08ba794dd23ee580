// Problems of known models' layers: their widths, ranks and rules, with few tokens and as many experts as the
// test's time allows.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "graph/runs.h"
#include "harness/cases.h"
#include "nn/moe/graph.h"
#include "nn/moe/slice.h"
#include "ops/all.h"

namespace sluice::test {

// Bounds on the elements of all experts' weights and on their products, so that a host can fill them and
// compute a double-precision reference in about three seconds. Filling random bf16 numbers takes ten times as
// long as filling codes.
inline int64_t model_weights(DType w) { return int64_t{w == DType::kE2M1 ? 32 : 16} << 20; }
constexpr int64_t kModelProducts = int64_t{512} << 20;

// The number of elements of an expert's two weight matrices.
inline int64_t expert_elements(const MoeConfig& c, int64_t intermediate) {
  return (is_gated(c.act) ? 3 : 2) * c.hidden * intermediate;
}
inline bool one_expert_fits(const MoeConfig& c) {
  return expert_elements(c, c.intermediate) <= model_weights(c.expert_w) &&
         expert_elements(c, c.shared_intermediate) <= model_weights(c.shared_w);
}

// A layer of a known model, or one rank's part of it. The number of ranks is random, and is increased until
// one expert is small enough.
inline MoeConfig random_known_layer(Random& random) {
  std::vector<std::string> names;
  std::istringstream all(known_moe_names());
  for (std::string name; std::getline(all >> std::ws, name, ',');) names.push_back(name);
  MoeConfig whole = known_moe(one_of<std::string>(random, names)).value();
  whole.layout = WeightLayout::kFragments;
  whole.residual = coin(random);
  if (coin(random)) whole.g = DType::kF32;
  if (coin(random)) whole.shared_as_slots = shared_fits_slots(whole);
  const int64_t ep = one_of(random, {1, 1, 1, 4});
  for (int64_t tp = one_of(random, {1, 1, 2, 4, 8});; tp *= 2) {
    const Slice slice{.tp_rank = random.integer(0, tp - 1),
                      .tp_size = tp,
                      .ep_rank = random.integer(0, ep - 1),
                      .ep_size = ep};
    const auto rank = sliced(whole, slice);
    // The last ranks may be empty; the first rank never is.
    const MoeConfig c = rank.ok() ? rank.value() : sliced(whole, {.tp_rank = 0, .tp_size = tp}).value();
    if (one_expert_fits(c)) return c;
  }
}

// Reduces the number of experts if their weights are too large; the router still distributes rows over all
// experts.
template <class Problem>
void bound_experts(Problem* p, int64_t elements) {
  const int64_t most = std::max<int64_t>(1, model_weights(p->w) / elements);
  if (p->experts <= most) return;
  p->experts_routed = std::max(p->experts, p->experts_routed);
  p->experts = most;
}
template <class Problem>
void bound_experts(Problem*) {}
inline void bound_experts(ExpertGemm::Problem* p) {
  bound_experts(p, ExpertGemm::weight_rows(*p) * p->width);
}
inline void bound_experts(ExpertMlp::Problem* p) {
  bound_experts(p, (is_gated(p->act) ? 3 : 2) * p->hidden * p->intermediate);
}

inline void bound_experts(GroupedMlp::Problem* p) { bound_experts(&p->mlp); }

// A stage of a random layer that is this operation; empty if no layer has such a stage.
template <class Op>
std::optional<typename Op::Problem> model_problem(Random& random) {
  for (int tries = 0; tries < 16; ++tries) {
    const MoeConfig c = random_known_layer(random);
    const bool weighs = std::is_same_v<Op, ExpertGemm> || std::is_same_v<Op, ExpertMlp> ||
                        std::is_same_v<Op, GroupedMlp> || std::is_same_v<Op, Linear>;
    const int64_t of_token = (c.top_k + shared_slots(c)) * expert_elements(c, c.intermediate);
    const int64_t most = weighs ? std::max<int64_t>(1, kModelProducts / of_token) : 80;
    const int64_t tokens = std::min(most, one_of(random, {1, 2, 3, 4, 5, 8, 13, 16, 17, 33, 64, 80}));
    std::vector<std::string> mine;
    const Graph graph = std::move(moe_graph(c).graph);
    for (size_t i = 0; i < graph.stages().size(); ++i) {
      if constexpr (requires { typename RunOf<Op>::Ops; }) {
        if (const auto run = run_at<Op>(graph, i)) mine.push_back(fields_text(Op::at_tokens(*run, tokens)));
      } else if (const auto* stage = dynamic_cast<const StageOf<Op>*>(graph.stages()[i].op.get())) {
        mine.push_back(fields_text(stage->at(tokens)));
      }
    }
    if (mine.empty()) continue;
    typename Op::Problem p;
    const Status read = parse_fields(one_of<std::string>(random, mine), &p);
    EXPECT_TRUE(read.ok()) << read.message;
    bound_experts(&p);
    return p;
  }
  return {};
}

}  // namespace sluice::test
