// A step's work as data: values, and the stages that make them of each other, in the order in which they run. Who runs it is a
// plan's choice (graph/step.h).
#pragma once
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/op.h"

namespace sluice {

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

// Where a value is.
enum class Place : uint8_t {
  kCall,     // the caller gives it with each call
  kHeld,     // the caller holds it from call to call: weights, tables, caches
  kBetween,  // in the workspace, from the stage that writes it to the last one that reads it
};

struct Value {
  std::string name;
  Place place = Place::kBetween;
  int32_t given = -1;  // its index in the caller's list of such values
  int32_t layer = -1;  // of what the caller holds: the layer that it belongs to; -1: around the layers
  // Elements from one row to the next, where stages see columns of it alone (the caller's own tensor says it better); 0: rows are
  // as the slots say, packed.
  int64_t row = 0;
  bool kept = false;       // who calls reads it after the step
  bool unaligned = false;  // of the caller: rows may begin anywhere, not only at multiples of 16 bytes
  bool fresh = false;      // of the caller: the launch before a step may still write it
  bool scratch = false;  // of the caller, to whom columns that a fused kernel leaves unfinished do not matter
};

// The tensor of a slot: a value, or columns of its rows from `column` on. What a slot's spec says is the shape.
struct Bind {
  ValueId value = kNoValue;
  int64_t column = 0;
  int32_t slice = -1;  // of a tensor of the caller's: this one along its first dimension; -1: all of it
  Bind() = default;
  Bind(ValueId v, int64_t first_column = 0)
      : value(v), column(first_column) {}  // NOLINT: a value is its own binding
};
inline Bind slice_of(ValueId value, int32_t index) {
  Bind out(value);
  out.slice = index;
  return out;
}

// An operation and its problem, for any number of tokens.
class StageOp {
 public:
  virtual ~StageOp() = default;
  virtual std::string_view op() const = 0;
  virtual bool equals(const StageOp& other) const = 0;
  virtual std::vector<SlotSpec> slots(int64_t tokens) const = 0;
};

template <class Op>
class StageOf final : public StageOp {
 public:
  StageOf(const typename Op::Problem& problem, int64_t rows) : problem_(problem), rows_(rows) {}
  const typename Op::Problem& problem() const { return problem_; }
  int64_t rows() const { return rows_; }
  typename Op::Problem at(int64_t tokens) const { return Op::at_tokens(problem_, tokens * rows_); }
  std::string_view op() const override { return Op::kName; }
  bool equals(const StageOp& other) const override {
    const auto* same = dynamic_cast<const StageOf*>(&other);
    return same && same->problem_ == problem_ && same->rows_ == rows_;
  }
  std::vector<SlotSpec> slots(int64_t tokens) const override {
    std::vector<SlotSpec> out;
    Op::slots(at(tokens), [&](const SlotSpec& spec, Tensor Op::Args::*) { out.push_back(spec); });
    return out;
  }

 private:
  typename Op::Problem problem_;
  int64_t rows_;  // of its operation, for each token of the step
};

struct Stage {
  std::string name;
  int32_t layer = -1;    // -1: around the layers
  bool experts = false;  // its kernel may be named, for decode and for prefill
  int32_t part = 0;      // stages of two parts never share a kernel (Graph::cut)
  std::unique_ptr<const StageOp> op;
  std::vector<Bind> slots;  // in the order of the operation's slots
  // "layer 3 experts.up"
  std::string text() const { return (layer < 0 ? "" : "layer " + std::to_string(layer) + " ") + name; }
};

struct StageOptions {
  int64_t rows = 1;  // of its operation, for each token of the step
  bool experts = false;
};

// One of an operation's tensors. (As the member of a struct, nvcc would write it with parentheses, at which GCC warns.)
template <class Op>
using SlotOf = Tensor Op::Args::*;

template <class Op>
struct SlotBind {
  SlotOf<Op> slot;
  Bind from;
};

class Graph {
 public:
  // Values of the caller, in the order of the lists that a call brings.
  ValueId call(std::string name, int64_t row = 0) {
    return add_value(std::move(name), Place::kCall, calls_++, row);
  }
  // Held values are of the layer that has begun.
  ValueId held(std::string name) {
    const ValueId value = add_value(std::move(name), Place::kHeld, held_++);
    return values_.back().layer = layer_, value;
  }
  ValueId between(std::string name, int64_t row = 0) {
    return add_value(std::move(name), Place::kBetween, -1, row);
  }
  // Stages see columns of its rows, `elements` apart.
  void in_rows(ValueId value, int64_t elements) {
    if (value != kNoValue) values_[static_cast<size_t>(value)].row = elements;
  }
  void may_be_unaligned(ValueId value) { values_[static_cast<size_t>(value)].unaligned = true; }
  void may_be_fresh(ValueId value) { values_[static_cast<size_t>(value)].fresh = true; }
  void may_be_scratch(ValueId value) { values_[static_cast<size_t>(value)].scratch = true; }
  void keep(ValueId value) { values_[static_cast<size_t>(value)].kept = true; }

  // The next stage. Slots that are not named are absent.
  template <class Op>
  void add(std::string name, const typename Op::Problem& problem, std::initializer_list<SlotBind<Op>> slots,
           StageOptions options = {}) {
    std::vector<Bind> binds;
    Op::slots(problem, [&](const SlotSpec&, Tensor Op::Args::*member) {
      Bind from;
      for (const SlotBind<Op>& s : slots)
        if (s.slot == member) from = s.from;
      binds.push_back(from);
    });
    add_bound<Op>(std::move(name), problem, std::move(binds), options);
  }
  // The same with all slots, in the order of the operation's.
  template <class Op>
  void add_bound(std::string name, const typename Op::Problem& problem, std::vector<Bind> slots,
                 StageOptions options = {}) {
    stages_.push_back({.name = std::move(name),
                       .layer = layer_,
                       .experts = options.experts,
                       .part = part_,
                       .op = std::make_unique<StageOf<Op>>(problem, options.rows),
                       .slots = std::move(slots)});
  }
  // Stages that follow are of this layer.
  void begin_layer(int32_t layer) { layer_ = layer; }
  // Work of somebody else stands here: a step runs up to this point, and goes on from it (Step::run_part).
  void cut() { ++part_; }

  const std::vector<Value>& values() const { return values_; }
  const std::vector<Stage>& stages() const { return stages_; }
  int32_t calls() const { return calls_; }
  int32_t held_count() const { return held_; }
  int32_t parts() const { return part_ + 1; }

 private:
  ValueId add_value(std::string name, Place place, int32_t given, int64_t row = 0) {
    values_.push_back({.name = std::move(name), .place = place, .given = given, .row = row});
    return static_cast<ValueId>(values_.size()) - 1;
  }

  std::vector<Value> values_;
  std::vector<Stage> stages_;
  int32_t calls_ = 0, held_ = 0, layer_ = -1, part_ = 0;
};

// What the caller holds, in the order of its list, as the first stage that reads it wants it.
struct HeldSlot {
  std::string name;
  int32_t layer = -1;
  SlotSpec spec = {};
  // "layer 3 attention.qkv"
  std::string text() const { return (layer < 0 ? "" : "layer " + std::to_string(layer) + " ") + name; }
  // Stages write it: a cache, and no weight.
  bool is_written() const { return spec.role != Role::kIn; }
};
std::vector<HeldSlot> held_slots(const Graph& graph);

// "route+group": the names of stages that one kernel computes.
std::string joined_name(const Graph& graph, size_t first, size_t stages);

}  // namespace sluice
