// Which runs of stages a fused operation covers. This depends only on the stages: their operations, their
// problems, and the tensors that they share.
#pragma once
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "graph/run_graph.h"
#include "ops/all.h"

namespace sluice {

// For each fused operation:
//
//   Ops               the operations of its stages, in order
//   of(problems...)   the problem whose stages have these problems, ignoring x_unaligned and settled; none if the operation cannot
//                     express them. of() may ignore fields, because find_run() compares the stages of its result with the graph.
//   stages(p, g)      adds its stages to `g`, and declares columns in which its kernels may leave other values (RunGraph::leaves). The
//                     kernels need not write the values between the stages.
//   kUnaligned        slots whose rows begin at multiples of 16 bytes unless the problem's x_unaligned is set; optional
//   kSettled          slots that no launch writes if the problem declares them settled (settled(p)); optional
//   alone(p, g)       the stages for a caller that passes separate tensors where stages() uses columns of one tensor; optional
//   kKernelsOnly      true if the operation cannot run stage by stage for such a caller; optional
template <class Op>
struct RunOf;
template <class Op>
concept kIsRun = requires {
  typename RunOf<Op>::Ops;
};

// If two operations cost the same, the earlier one is used.
using AllRuns = OpList<RouterRoute, NormRouterRoute, RouteGroup, GroupedMlp, ExpertMlp, CombineNorm,
                       RopeKvWrite, QkNormRopeKvWrite, QkvRopeKvWrite, LatentNormRopeKvWrite, LinearArgmax>;

template <class Visit>
void for_each_run(Visit visit) {
  [&]<class... Ops>(OpList<Ops...>) { (visit.template operator()<Ops>(), ...); }(AllRuns{});
}

template <>
struct RunOf<RouterRoute> {
  using Ops = OpList<RouterGemm, RouteTopk>;
  static std::optional<RouterRoute::Problem> of(const RouterGemm::Problem& gate,
                                                const RouteTopk::Problem& route);
  static void stages(const RouterRoute::Problem& p, RunGraph<RouterRoute>* g);
};

template <>
struct RunOf<NormRouterRoute> {
  using Ops = OpList<RmsNorm, RouterGemm, RouteTopk>;
  static std::optional<NormRouterRoute::Problem> of(const RmsNorm::Problem& norm,
                                                    const RouterGemm::Problem& gate,
                                                    const RouteTopk::Problem& route);
  static void stages(const NormRouterRoute::Problem& p, RunGraph<NormRouterRoute>* g);
  static constexpr SlotOf<NormRouterRoute> kUnaligned[] = {&NormRouterRoute::Args::x,
                                                           &NormRouterRoute::Args::normed};
};

template <>
struct RunOf<RouteGroup> {
  using Ops = OpList<RouteTopk, GroupRows>;
  static std::optional<RouteGroup::Problem> of(const RouteTopk::Problem& route,
                                               const GroupRows::Problem& group);
  static void stages(const RouteGroup::Problem& p, RunGraph<RouteGroup>* g);
};

template <>
struct RunOf<GroupedMlp> {
  using Ops = OpList<ExpertGemm, ExpertGemm>;
  static std::optional<GroupedMlp::Problem> of(const ExpertGemm::Problem& up,
                                               const ExpertGemm::Problem& down);
  static void stages(const GroupedMlp::Problem& p, RunGraph<GroupedMlp>* g);
};

template <>
struct RunOf<ExpertMlp> {
  using Ops = OpList<GroupRows, ExpertGemm, ExpertGemm, Combine>;
  static std::optional<ExpertMlp::Problem> of(const GroupRows::Problem&, const ExpertGemm::Problem& up,
                                              const ExpertGemm::Problem& down, const Combine::Problem& sum);
  static void stages(const ExpertMlp::Problem& p, RunGraph<ExpertMlp>* g);
};

template <>
struct RunOf<CombineNorm> {
  using Ops = OpList<Combine, RmsNorm>;
  static std::optional<CombineNorm::Problem> of(const Combine::Problem& combine,
                                                const RmsNorm::Problem& norm);
  static void stages(const CombineNorm::Problem& p, RunGraph<CombineNorm>* g);
  static constexpr SlotOf<CombineNorm> kUnaligned[] = {&CombineNorm::Args::shared,
                                                       &CombineNorm::Args::residual, &CombineNorm::Args::y,
                                                       &CombineNorm::Args::normed};
};

// One stage rotates queries and keys, because their heads are adjacent.
template <>
struct RunOf<RopeKvWrite> {
  using Ops = OpList<Rope, KvWrite>;
  static std::optional<RopeKvWrite::Problem> of(const Rope::Problem& rope, const KvWrite::Problem& write);
  static void stages(const RopeKvWrite::Problem& p, RunGraph<RopeKvWrite>* g);
  static constexpr SlotOf<RopeKvWrite> kSettled[] = {&RopeKvWrite::Args::positions, &RopeKvWrite::Args::table,
                                                     &RopeKvWrite::Args::slot_of};
  static bool& settled(RopeKvWrite::Problem& p) { return p.settled; }
  static constexpr bool kKernelsOnly = true;
};

template <>
struct RunOf<QkvRopeKvWrite> {
  using Ops = OpList<Linear, Rope, KvWrite>;
  static std::optional<QkvRopeKvWrite::Problem> of(const Linear::Problem& linear, const Rope::Problem& rope,
                                                   const KvWrite::Problem& write);
  static void stages(const QkvRopeKvWrite::Problem& p, RunGraph<QkvRopeKvWrite>* g);
  static constexpr SlotOf<QkvRopeKvWrite> kSettled[] = {
      &QkvRopeKvWrite::Args::positions, &QkvRopeKvWrite::Args::table, &QkvRopeKvWrite::Args::slot_of};
  static bool& settled(QkvRopeKvWrite::Problem& p) { return p.rope.settled; }
};

template <>
struct RunOf<QkNormRopeKvWrite> {
  using A = QkNormRopeKvWrite::Args;
  using Ops = OpList<RmsNorm, RmsNorm, Rope, KvWrite>;
  static std::optional<QkNormRopeKvWrite::Problem> of(const RmsNorm::Problem& queries,
                                                      const RmsNorm::Problem& keys, const Rope::Problem& rope,
                                                      const KvWrite::Problem& write);
  static void stages(const QkNormRopeKvWrite::Problem& p, RunGraph<QkNormRopeKvWrite>* g);
  static constexpr SlotOf<QkNormRopeKvWrite> kUnaligned[] = {&A::q, &A::k, &A::v};
  static constexpr SlotOf<QkNormRopeKvWrite> kSettled[] = {&A::positions, &A::table, &A::slot_of};
  static bool& settled(QkNormRopeKvWrite::Problem& p) { return p.rotation.settled; }
  static void alone(const QkNormRopeKvWrite::Problem& p, RunGraph<QkNormRopeKvWrite>* g);
};

// Queries and cache rows are separate tensors, because the queries may come from their own latent.
template <>
struct RunOf<LatentNormRopeKvWrite> {
  using A = LatentNormRopeKvWrite::Args;
  using Ops = OpList<Rope, RmsNorm, Rope, KvWrite>;
  static std::optional<LatentNormRopeKvWrite::Problem> of(const Rope::Problem& queries,
                                                          const RmsNorm::Problem& norm,
                                                          const Rope::Problem& keys,
                                                          const KvWrite::Problem& write);
  static void stages(const LatentNormRopeKvWrite::Problem& p, RunGraph<LatentNormRopeKvWrite>* g);
  static constexpr SlotOf<LatentNormRopeKvWrite> kUnaligned[] = {&A::q, &A::k};
  static constexpr SlotOf<LatentNormRopeKvWrite> kSettled[] = {&A::positions, &A::table, &A::slot_of};
  static bool& settled(LatentNormRopeKvWrite::Problem& p) { return p.settled; }
};

// Greedy decoding.
template <>
struct RunOf<LinearArgmax> {
  using Ops = OpList<Linear, Sample>;
  static std::optional<LinearArgmax::Problem> of(const Linear::Problem& linear,
                                                 const Sample::Problem& sample);
  static void stages(const LinearArgmax::Problem& p, RunGraph<LinearArgmax>* g);
};

template <class... Ops>
constexpr size_t count_of(OpList<Ops...>) {
  return sizeof...(Ops);
}
template <class Op>
constexpr size_t kRunStages = count_of(typename RunOf<Op>::Ops{});

// Where a fused operation finds the tensor of one of its slots: a slot of one of the stages.
struct StageSlot {
  uint8_t stage = 0, slot = 0;
};

// A run of stages that an operation covers.
template <class Op>
struct FoundRun {
  typename Op::Problem problem;    // problem for zero tokens
  std::vector<ValueId> hidden;     // values that the operation's kernels need not write
  std::vector<StageSlot> sources;  // source of each slot
};

namespace detail {

// Matches the pattern with the stages from `first` on. Returns the graph's value and column for each value of
// `pattern`; empty if there is no match.
std::vector<Bind> match(const Graph& pattern, const Graph& graph, size_t first);
// Whether only the stages [first, end) use the value, and the caller does not read it.
bool unseen(const Graph& graph, size_t first, size_t end, ValueId value);
// Whether neither a stage from `end` on nor the caller reads any of the `count` columns.
bool unread(const Graph& graph, size_t end, const Bind& columns, int64_t count);
// The first slot of the pattern's stages that is bound to `bind`.
StageSlot source_of(const Graph& pattern, const Bind& bind);

// The stages from `first` on, if they have these operations and no cut lies between them.
template <class... Ops, size_t... k>
std::optional<std::tuple<const StageOf<Ops>*...>> stages_at(const Graph& graph, size_t first, OpList<Ops...>,
                                                            std::index_sequence<k...>) {
  const auto& stages = graph.stages();
  if (first + sizeof...(Ops) > stages.size()) return {};
  if (stages[first].part != stages[first + sizeof...(Ops) - 1].part) return {};
  const std::tuple out{dynamic_cast<const StageOf<Ops>*>(stages[first + k].op.get())...};
  if ((std::get<k>(out) && ...)) return out;
  return {};
}

}  // namespace detail

// The graph of a problem's stages, for zero tokens.
template <class Op>
RunGraph<Op> run_graph(const typename Op::Problem& problem) {
  typename Op::Problem p = Op::at_tokens(problem, 0);
  RunGraph<Op> out(p);
  RunOf<Op>::stages(p, &out);
  if constexpr (requires { RunOf<Op>::kUnaligned; })
    for (const auto slot : RunOf<Op>::kUnaligned)
      if (p.x_unaligned && out(slot).value != kNoValue) out.graph.may_be_unaligned(out(slot).value);
  if constexpr (requires { RunOf<Op>::kSettled; })
    for (const auto slot : RunOf<Op>::kSettled)
      if (!RunOf<Op>::settled(p)) out.graph.may_be_fresh(out(slot).value);
  return out;
}

// The graph of the stages for a caller that passes separate tensors.
template <class Op>
Graph op_graph(const typename Op::Problem& problem) {
  if constexpr (requires(RunGraph<Op> * g) { RunOf<Op>::alone(problem, g); }) {
    RunGraph<Op> out(Op::at_tokens(problem, 0));
    RunOf<Op>::alone(Op::at_tokens(problem, 0), &out);
    return std::move(out.graph);
  } else {
    return run_graph<Op>(problem).graph;
  }
}

// The run of stages from `first` on that the fused operation can compute; none if there is no such run.
template <class Op>
std::optional<FoundRun<Op>> find_run(const Graph& graph, size_t first) {
  const auto found =
      detail::stages_at(graph, first, typename RunOf<Op>::Ops{}, std::make_index_sequence<kRunStages<Op>>{});
  if (!found) return {};
  auto problem = std::apply([](const auto*... stage) { return RunOf<Op>::of(stage->problem()...); }, *found);
  if (!problem) return {};
  const RunGraph<Op> pattern = run_graph<Op>(*problem);
  const std::vector<Bind> values = detail::match(pattern.graph, graph, first);
  if (values.empty()) return {};
  FoundRun<Op> out{.problem = *problem, .hidden = {}, .sources = {}};
  for (size_t v = 0; v < values.size(); ++v) {
    if (pattern.graph.values()[v].place != Place::kBetween) continue;
    out.hidden.push_back(values[v].value);
    if (!detail::unseen(graph, first, first + kRunStages<Op>, values[v].value)) return {};
  }
  for (const auto& [columns, count] : pattern.scratch()) {
    Bind there = values[static_cast<size_t>(columns.value)];
    there.column += columns.column;
    if (!detail::unread(graph, first + kRunStages<Op>, there, count)) return {};
  }
  for (const auto& [slot, bind] : pattern.slots())
    out.sources.push_back(detail::source_of(pattern.graph, bind));
  const auto value_of = [&](SlotOf<Op> slot) -> const Value* {
    const ValueId in_pattern = pattern(slot).value;
    if (in_pattern == kNoValue) return nullptr;
    return &graph.values()[static_cast<size_t>(values[static_cast<size_t>(in_pattern)].value)];
  };
  if constexpr (requires { RunOf<Op>::kUnaligned; })
    for (const SlotOf<Op> slot : RunOf<Op>::kUnaligned)
      if (const Value* v = value_of(slot); v && v->unaligned) out.problem.x_unaligned = true;
  if constexpr (requires { RunOf<Op>::kSettled; }) {
    bool all = true;
    for (const SlotOf<Op> slot : RunOf<Op>::kSettled)
      if (const Value* v = value_of(slot)) all &= v->place != Place::kBetween && !v->fresh;
    RunOf<Op>::settled(out.problem) = all;
  }
  return out;
}
template <class Op>
std::optional<typename Op::Problem> run_at(const Graph& graph, size_t stage) {
  auto found = find_run<Op>(graph, stage);
  if (!found) return {};
  return found->problem;
}
// The problem of the operation's first run in a graph.
template <class Op>
std::optional<typename Op::Problem> first_run(const Graph& graph) {
  std::optional<typename Op::Problem> out;
  for (size_t i = 0; !out && i < graph.stages().size(); ++i) out = run_at<Op>(graph, i);
  return out;
}

}  // namespace sluice
