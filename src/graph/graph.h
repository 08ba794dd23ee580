// The work of a step as data: values, and the stages that compute them, in execution order. Planning
// chooses the kernels that run the stages (graph/step.h).
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

// Where a value is stored.
enum class Place : uint8_t {
  kCall,  // the caller passes it with each call
  kHeld,  // the caller holds it across calls: weights, tables, caches
  // in the workspace, where it lives from the first stage that writes it to the last stage that reads it
  kBetween,
};

struct Value {
  std::string name;
  Place place = Place::kBetween;
  int32_t given = -1;  // index in the caller's list of call values or of held values
  int32_t layer = -1;  // layer of a held value; -1: outside the layers
  // Distance between rows in elements, if stages see only some columns of the value; the stride of a caller's
  // tensor takes precedence. 0: rows are packed, as the slots describe them.
  int64_t row = 0;
  bool kept = false;       // the caller reads it after the step
  bool unaligned = false;  // rows of a caller's value need not begin at multiples of 16 bytes
  bool fresh = false;      // the launch before the step may still write this caller's value
  bool scratch = false;    // a fused kernel may leave columns of this caller's value unfinished
};

// The tensor of a slot: a value, or columns of its rows from `column` on. The slot's spec gives the shape.
struct Bind {
  ValueId value = kNoValue;
  int64_t column = 0;
  int32_t slice = -1;  // index along the first dimension of a caller's tensor; -1: the whole tensor
  Bind() = default;
  Bind(ValueId v, int64_t first_column = 0)
      : value(v), column(first_column) {}  // NOLINT: a value is its own binding
};
inline Bind slice_of(ValueId value, int32_t index) {
  Bind out(value);
  out.slice = index;
  return out;
}

// An operation and its problem, for any token count.
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
  int64_t rows_;  // rows of the operation per token of the step
};

struct Stage {
  std::string name;
  int32_t layer = -1;  // -1: outside the layers
  // computes routed experts: its kernel may be forced separately for decode and prefill
  bool experts = false;
  int32_t part = 0;  // one kernel never computes stages of two parts (Graph::cut)
  std::unique_ptr<const StageOp> op;
  std::vector<Bind> slots;  // in the order of the operation's slots
  // "layer 3 experts.up"
  std::string text() const { return (layer < 0 ? "" : "layer " + std::to_string(layer) + " ") + name; }
};

struct StageOptions {
  int64_t rows = 1;  // rows of the operation per token of the step
  bool experts = false;
};

// One tensor of an operation. An alias, because nvcc adds parentheses when it prints the type, about which GCC then warns.
template <class Op>
using SlotOf = Tensor Op::Args::*;

template <class Op>
struct SlotBind {
  SlotOf<Op> slot;
  Bind from;
};

class Graph {
 public:
  // Adds a value that the caller passes with each call. The caller lists these tensors in the order of creation.
  ValueId call(std::string name, int64_t row = 0) {
    return add_value(std::move(name), Place::kCall, calls_++, row);
  }
  // Adds a value that the caller holds; it belongs to the current layer.
  ValueId held(std::string name) {
    const ValueId value = add_value(std::move(name), Place::kHeld, held_++);
    return values_.back().layer = layer_, value;
  }
  ValueId between(std::string name, int64_t row = 0) {
    return add_value(std::move(name), Place::kBetween, -1, row);
  }
  // Declares that stages see only some columns of the value, whose rows are `elements` elements apart.
  void in_rows(ValueId value, int64_t elements) {
    if (value != kNoValue) values_[static_cast<size_t>(value)].row = elements;
  }
  void may_be_unaligned(ValueId value) { values_[static_cast<size_t>(value)].unaligned = true; }
  void may_be_fresh(ValueId value) { values_[static_cast<size_t>(value)].fresh = true; }
  void may_be_scratch(ValueId value) { values_[static_cast<size_t>(value)].scratch = true; }
  void keep(ValueId value) { values_[static_cast<size_t>(value)].kept = true; }

  // Adds the next stage. Slots that are not named are absent.
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
  // Like add(), but lists all slots, in the operation's order.
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
  // Stages added after this call belong to this layer.
  void begin_layer(int32_t layer) { layer_ = layer; }
  // Divides the graph here, so that the caller can enqueue other work between the two parts (Step::run_part).
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

// A held value, in the caller's order, with the spec of the first stage that uses it.
struct HeldSlot {
  std::string name;
  int32_t layer = -1;
  SlotSpec spec = {};
  // "layer 3 attention.qkv"
  std::string text() const { return (layer < 0 ? "" : "layer " + std::to_string(layer) + " ") + name; }
  // Whether stages write the value: true for a cache, false for a weight.
  bool is_written() const { return spec.role != Role::kIn; }
};
std::vector<HeldSlot> held_slots(const Graph& graph);

// "route+group": joined names of stages that one kernel computes.
std::string joined_name(const Graph& graph, size_t first, size_t stages);

}  // namespace sluice
