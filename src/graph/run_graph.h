// The stages of a fused operation as a separate graph. It is used as a pattern, to find the operation's runs
// in other graphs, and to compute the operation stage by stage.
#pragma once
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace sluice {

template <class Op>
class RunGraph {
 public:
  using Slot = Tensor Op::Args::*;

  // The caller passes the operation's tensors in the order of its slots.
  explicit RunGraph(const typename Op::Problem& problem) {
    Op::slots(problem, [&](const SlotSpec& spec, Slot member) {
      const ValueId value = graph.call(std::string(spec.name));
      slots_.push_back({member, spec.used ? Bind(value) : Bind()});
    });
  }
  // Returns no value if the problem does not use the slot.
  Bind operator()(Slot slot) const {
    for (const auto& [member, bind] : slots_)
      if (member == slot) return bind;
    return {};
  }
  // Declares that stages see only some columns of the slot, whose rows are `elements` elements apart.
  Bind in_rows(Slot slot, int64_t elements) {
    const Bind bind = (*this)(slot);
    graph.in_rows(bind.value, elements);
    return bind;
  }
  // Binds the slot to columns of another value.
  void is_part(Slot slot, const Bind& of) {
    for (auto& [member, bind] : slots_)
      if (member == slot) bind = of;
  }
  // Declares that in `count` columns of a value, the operation's kernels may leave other contents than its
  // stages do.
  void leaves(const Bind& columns, int64_t count) {
    graph.may_be_scratch(columns.value);
    scratch_.push_back({columns, count});
  }
  // Adds a stage whose slots are slots of the operation.
  template <class Part>
  void add_own(std::string name, const typename Part::Problem& problem) {
    static_assert(std::is_base_of_v<typename Part::Args, typename Op::Args>);
    std::vector<Bind> binds;
    Part::slots(problem, [&](const SlotSpec&, Tensor Part::Args::*member) {
      binds.push_back((*this)(static_cast<Slot>(member)));
    });
    graph.template add_bound<Part>(std::move(name), problem, std::move(binds));
  }
  const std::vector<std::pair<Slot, Bind>>& slots() const { return slots_; }
  const std::vector<std::pair<Bind, int64_t>>& scratch() const { return scratch_; }

  Graph graph;

 private:
  std::vector<std::pair<Slot, Bind>> slots_;
  std::vector<std::pair<Bind, int64_t>> scratch_;
};

}  // namespace sluice
