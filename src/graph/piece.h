// What one kernel computes of a graph: a stage, or a run of consecutive ones.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/any_op.h"
#include "graph/graph.h"

namespace sluice {

// The caller's tensors of a call, in the order in which Graph::call() and Graph::held() made their values.
struct Given {
  std::span<const Tensor> call, held;
  // This tensor stands in for a value between stages.
  ValueId instead = kNoValue;
  Tensor stand_in = {};
};

// The place of a value that no kernel of a plan writes.
inline constexpr size_t kNowhere = ~size_t{0};

// Where the values of a step are, in a call of so many tokens.
struct Placed {
  std::span<const Value> values;
  std::span<const size_t> at;  // of each value between stages: its place in the workspace
  const Given* given = nullptr;
  std::byte* base = nullptr;
  int64_t tokens = 0;
  Backend where = Backend::kCpu;
  Tensor tensor(const Bind& bind, const SlotSpec& spec) const;
};

// How far one piece of a step was from its reference, as a share of its bound.
struct StageCheck {
  std::string stage, kernel;
  double worst = 0;  // 1 is the bound; above it the stage is wrong
  std::string detail = {};
};

// Stages that one kernel may compute. Equal ones of a graph are one kind.
class PieceKind {
 public:
  virtual ~PieceKind() = default;
  virtual std::string_view op() const = 0;
  size_t stages() const { return stages_; }
  int32_t phase() const { return phase_; }  // of the step's phases; -1: all of them
  // Whether a kernel is there for so many tokens.
  bool serves(int64_t tokens) const { return first_ <= tokens && tokens <= last_; }
  int64_t first() const { return first_; }
  int64_t last() const { return last_; }
  bool serves_all(int64_t first, int64_t last) const { return first_ <= first && last <= last_; }
  // Where none is: every reason.
  const Status& refusal() const { return refusal_; }
  // Policy::force names a kernel of it, so no other computes its stages.
  bool required() const { return required_; }

  // Of a count that it serves.
  virtual double cost_us(int64_t tokens) const = 0;
  virtual std::string_view kernel(int64_t tokens) const = 0;
  virtual std::string choice(int64_t tokens) const = 0;  // "NAME" or "NAME:CONFIG"
  virtual bool planned(int64_t tokens) const = 0;        // Candidate::planned
  virtual size_t workspace_bytes() const = 0;
  virtual std::unique_ptr<AnyProblem> problem(int64_t tokens) const = 0;
  virtual const Policy& policy() const = 0;  // that its kernels are chosen under
  virtual Status run(std::span<const Stage> stages, const Placed& placed, Workspace scratch,
                     Stream stream) const = 0;
  // Runs it, and holds what it wrote to the double-precision reference on the inputs that it really got, which are copied to the
  // host first. Slow.
  virtual Result<StageCheck> check(std::span<const Stage> stages, const Placed& placed, Workspace scratch,
                                   Device& device, Stream stream) const = 0;

 protected:
  size_t stages_ = 1;
  int32_t phase_ = -1;
  int64_t first_ = 0, last_ = -1;
  bool required_ = false;
  Status refusal_ = {};
};

}  // namespace sluice
