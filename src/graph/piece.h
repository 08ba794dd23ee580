// A piece is the part of a graph that one kernel computes: a stage, or a run of consecutive stages.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/any_op.h"
#include "graph/graph.h"

namespace sluice {

// The tensors that the caller passes to a call, in the order in which Graph::call() and Graph::held() created their values.
struct Given {
  std::span<const Tensor> call, held;
  // `stand_in` replaces this value, which is otherwise stored in the workspace.
  ValueId instead = kNoValue;
  Tensor stand_in = {};
};

// The offset of a value that no kernel of the plan writes.
inline constexpr size_t kNowhere = ~size_t{0};

// Where a call with `tokens` tokens stores the values of a step.
struct Placed {
  std::span<const Value> values;
  std::span<const size_t> at;  // workspace offset of each Place::kBetween value
  const Given* given = nullptr;
  std::byte* base = nullptr;
  int64_t tokens = 0;
  Backend where = Backend::kCpu;
  Tensor tensor(const Bind& bind, const SlotSpec& spec) const;
};

// The largest deviation of one piece of a step from its reference, relative to the allowed bound.
struct StageCheck {
  std::string stage, kernel;
  double worst = 0;  // 1 is the bound; above it the stage is wrong
  std::string detail = {};
};

// Stages that one kernel may compute, with the plan for them. Pieces with equal stages share one PieceKind.
class PieceKind {
 public:
  virtual ~PieceKind() = default;
  virtual std::string_view op() const = 0;
  size_t stages() const { return stages_; }
  int32_t phase() const { return phase_; }  // index among the step's phases; -1: all phases
  // Whether a kernel exists for this token count.
  bool serves(int64_t tokens) const { return first_ <= tokens && tokens <= last_; }
  int64_t first() const { return first_; }
  int64_t last() const { return last_; }
  bool serves_all(int64_t first, int64_t last) const { return first_ <= first && last <= last_; }
  // If some token counts have no kernel: all reasons of all kernels.
  const Status& refusal() const { return refusal_; }
  // Policy::force names a kernel of this kind, so no other kernel may compute its stages.
  bool required() const { return required_; }

  // Call the functions below only for token counts with a kernel (serves()).
  virtual double cost_us(int64_t tokens) const = 0;
  virtual std::string_view kernel(int64_t tokens) const = 0;
  virtual std::string choice(int64_t tokens) const = 0;  // "NAME" or "NAME:CONFIG"
  virtual bool planned(int64_t tokens) const = 0;        // Candidate::planned
  virtual size_t workspace_bytes() const = 0;
  virtual std::unique_ptr<AnyProblem> problem(int64_t tokens) const = 0;
  virtual const Policy& policy() const = 0;  // policy under which the piece's kernels are chosen
  virtual Status run(std::span<const Stage> stages, const Placed& placed, Workspace scratch,
                     Stream stream) const = 0;
  // Runs the piece and compares its outputs with the double-precision reference on its actual inputs, which
  // are copied to the host first. Slow.
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
