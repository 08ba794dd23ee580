// Which runs of stages an operation of several covers: what it takes from them, and what it leaves unwritten.
#pragma once
#include <algorithm>
#include <optional>
#include <vector>

#include "graph/graph.h"
#include "ops/all.h"

namespace sluice {

// Consecutive stages of a graph, as an operation of several looks at them.
class RunView {
 public:
  RunView(const Graph& graph, size_t first) : graph_(graph), first_(first) {}
  const Stage& stage(size_t k) const { return graph_.stages()[first_ + k]; }
  size_t first() const { return first_; }
  const Graph& graph() const { return graph_; }
  // Of the stage `k`, whose operation is Op.
  template <class Op>
  const StageOf<Op>& of(size_t k) const {
    return static_cast<const StageOf<Op>&>(*stage(k).op);
  }
  template <class Op>
  Bind bind(size_t k, std::type_identity_t<Tensor Op::Args::*> slot) const {
    Bind out;
    size_t i = 0;
    Op::slots(of<Op>(k).problem(), [&](const SlotSpec&, Tensor Op::Args::*member) {
      if (member == slot) out = stage(k).slots[i];
      ++i;
    });
    return out;
  }
  bool unaligned(std::initializer_list<Bind> binds) const {
    return std::any_of(binds.begin(), binds.end(), [&](const Bind& b) {
      return b.value != kNoValue && graph_.values()[static_cast<size_t>(b.value)].unaligned;
    });
  }
  // Whether the caller has the tensor: no stage writes it.
  bool given(const Bind& b) const {
    return b.value != kNoValue && graph_.values()[static_cast<size_t>(b.value)].place != Place::kBetween;
  }

 private:
  const Graph& graph_;
  size_t first_;
};

// Of each operation of several:
//
//   Ops                 the operations of the stages that it covers, one after the other
//   problem(view)       what these stages ask of it, for no tokens; none where it does not compute them
//   hidden(view)        values between them that it does not write
//   args(p, args...)    its tensors, from those of the stages
template <class Op>
struct RunOf;

// In the order that breaks ties of cost.
using AllRuns = OpList<RouterRoute, NormRouterRoute, RouteGroup, GroupedMlp, ExpertMlp, CombineNorm,
                       RopeKvWrite, QkNormRopeKvWrite, QkvRopeKvWrite>;

template <class Visit>
void for_each_run(Visit visit) {
  [&]<class... Ops>(OpList<Ops...>) { (visit.template operator()<Ops>(), ...); }(AllRuns{});
}

template <>
struct RunOf<RouterRoute> {
  using Ops = OpList<RouterGemm, RouteTopk>;
  static std::optional<RouterRoute::Problem> problem(const RunView& v);
  static std::vector<ValueId> hidden(const RunView&) { return {}; }
  static RouterRoute::Args args(const RouterRoute::Problem&, const RouterGemm::Args& gate,
                                const RouteTopk::Args& route);
};

template <>
struct RunOf<NormRouterRoute> {
  using Ops = OpList<RmsNorm, RouterGemm, RouteTopk>;
  static std::optional<NormRouterRoute::Problem> problem(const RunView& v);
  static std::vector<ValueId> hidden(const RunView&) { return {}; }
  static NormRouterRoute::Args args(const NormRouterRoute::Problem&, const RmsNorm::Args& norm,
                                    const RouterGemm::Args& gate, const RouteTopk::Args& route);
};

template <>
struct RunOf<RouteGroup> {
  using Ops = OpList<RouteTopk, GroupRows>;
  static std::optional<RouteGroup::Problem> problem(const RunView& v);
  static std::vector<ValueId> hidden(const RunView&) { return {}; }
  static RouteGroup::Args args(const RouteGroup::Problem&, const RouteTopk::Args& route,
                               const GroupRows::Args& group);
};

template <>
struct RunOf<GroupedMlp> {
  using Ops = OpList<ExpertGemm, ExpertGemm>;
  static std::optional<GroupedMlp::Problem> problem(const RunView& v);
  static std::vector<ValueId> hidden(const RunView& v);
  static GroupedMlp::Args args(const GroupedMlp::Problem& p, const ExpertGemm::Args& up,
                               const ExpertGemm::Args& down);
};

template <>
struct RunOf<ExpertMlp> {
  using Ops = OpList<GroupRows, ExpertGemm, ExpertGemm, Combine>;
  static std::optional<ExpertMlp::Problem> problem(const RunView& v);
  static std::vector<ValueId> hidden(const RunView& v);
  static ExpertMlp::Args args(const ExpertMlp::Problem& p, const GroupRows::Args& group,
                              const ExpertGemm::Args& up, const ExpertGemm::Args& down,
                              const Combine::Args& combine);
};

template <>
struct RunOf<CombineNorm> {
  using Ops = OpList<Combine, RmsNorm>;
  static std::optional<CombineNorm::Problem> problem(const RunView& v);
  static std::vector<ValueId> hidden(const RunView&) { return {}; }
  static CombineNorm::Args args(const CombineNorm::Problem&, const Combine::Args& combine,
                                const RmsNorm::Args& norm);
};

// Queries and keys turn in one stage: the heads of both lie side by side.
template <>
struct RunOf<RopeKvWrite> {
  using Ops = OpList<Rope, KvWrite>;
  static std::optional<RopeKvWrite::Problem> problem(const RunView& v);
  static std::vector<ValueId> hidden(const RunView&) { return {}; }
  static RopeKvWrite::Args args(const RopeKvWrite::Problem& p, const Rope::Args& rope,
                                const KvWrite::Args& write);
};

template <>
struct RunOf<QkNormRopeKvWrite> {
  using Ops = OpList<RmsNorm, RmsNorm, Rope, KvWrite>;
  static std::optional<QkNormRopeKvWrite::Problem> problem(const RunView& v);
  static std::vector<ValueId> hidden(const RunView&) { return {}; }
  static QkNormRopeKvWrite::Args args(const QkNormRopeKvWrite::Problem& p, const RmsNorm::Args& queries,
                                      const RmsNorm::Args& keys, const Rope::Args& rope,
                                      const KvWrite::Args& write);
};

template <>
struct RunOf<QkvRopeKvWrite> {
  using Ops = OpList<Linear, Rope, KvWrite>;
  static std::optional<QkvRopeKvWrite::Problem> problem(const RunView& v);
  static std::vector<ValueId> hidden(const RunView&) { return {}; }
  static QkvRopeKvWrite::Args args(const QkvRopeKvWrite::Problem&, const Linear::Args& project,
                                   const Rope::Args& rope, const KvWrite::Args& write);
};

template <class... Ops>
constexpr size_t count_of(OpList<Ops...>) {
  return sizeof...(Ops);
}
template <class Op>
constexpr size_t kRunStages = count_of(typename RunOf<Op>::Ops{});

// Whether the stages from `first` on have these operations, and no cut stands between them.
template <class... Ops>
bool has_ops(const Graph& graph, size_t first, OpList<Ops...>) {
  if (first + sizeof...(Ops) > graph.stages().size()) return false;
  size_t k = first;
  const auto next = [&]() -> const Stage& { return graph.stages()[k++]; };
  const auto fits = [&]<class Op>(std::type_identity<Op>) {
    const Stage& s = next();
    return dynamic_cast<const StageOf<Op>*>(s.op.get()) != nullptr && s.part == graph.stages()[first].part;
  };
  return (fits(std::type_identity<Ops>{}) && ...);
}

// Whether a value that the stages [first, end) may leave unwritten is read by nobody else.
bool unseen(const Graph& graph, size_t first, size_t end, ValueId value);

// What an operation of several would compute from a stage on; none where it cannot.
template <class Op>
std::optional<typename Op::Problem> run_at(const Graph& graph, size_t stage) {
  if (!has_ops(graph, stage, typename RunOf<Op>::Ops{})) return {};
  const RunView view(graph, stage);
  auto problem = RunOf<Op>::problem(view);
  if (!problem) return {};
  for (const ValueId value : RunOf<Op>::hidden(view))
    if (!unseen(graph, stage, stage + kRunStages<Op>, value)) return {};
  return problem;
}
// The first of a graph.
template <class Op>
std::optional<typename Op::Problem> first_run(const Graph& graph) {
  std::optional<typename Op::Problem> out;
  for (size_t i = 0; !out && i < graph.stages().size(); ++i) out = run_at<Op>(graph, i);
  return out;
}

}  // namespace sluice
