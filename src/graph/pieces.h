// All pieces that may compute a graph's stages.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "dispatch/catalog.h"
#include "graph/piece.h"
#include "graph/runs.h"

namespace sluice {

// A range of token counts, and the kernel that routed experts must use for them; empty: no kernel is forced.
struct StepPhase {
  int64_t first = 0, last = 0;
  std::string kernel = {};  // in the form of Policy::force; only for stages with Stage::experts
};

struct StepPolicy {
  Policy policy = {};
  std::vector<StepPhase> phases = {};  // empty: a single phase without a forced kernel
  std::string_view without = {};       // name of a fused operation whose kernels must not be used
  // With Policy::batch_invariant, kernels are chosen for up to this many tokens, so that steps with other bounds
  // choose the same kernels; 0: tokens_max.
  int64_t choice_tokens = 0;
};

// A piece at its position in the graph.
struct PlacedPiece {
  size_t first = 0;  // index of its first stage
  const PieceKind* kind = nullptr;
  size_t end() const { return first + kind->stages(); }
};

// The operations of a graph's stages, and the fused operations that cover some of them.
std::vector<std::string_view> ops_of(const Graph& graph);
// Returns the policy with only those forced kernels that belong to this graph's operations; several graphs may
// share one policy.
Policy policy_of(const Policy& policy, const Graph& graph);

// For each phase: a piece for each single stage, and a piece for each run of stages that a fused operation covers.
class Pieces {
 public:
  // kInvalidArgument: the policy names a kernel of an operation that is not in this graph.
  static Result<Pieces> make(const DeviceInfo& device, const Catalog& catalog, const Graph& graph,
                             const std::vector<StepPhase>& phases, const StepPolicy& policy);
  // The pieces that begin at this stage in this phase. If two cost the same, the first is used.
  const std::vector<const PieceKind*>& at(size_t stage, size_t phase) const {
    return at_[phase * stages_ + stage];
  }
  const std::vector<std::unique_ptr<PieceKind>>& kinds() const { return kinds_; }
  // The range [first, end) of stages that some piece computes together with this stage.
  std::pair<size_t, size_t> reach(size_t stage) const { return reach_[stage]; }
  // Whether the piece keeps this value internal instead of writing it.
  bool hides(const PlacedPiece& piece, ValueId value) const {
    const auto found = hidden_.find({piece.first, piece.kind});
    return found != hidden_.end() &&
           std::find(found->second.begin(), found->second.end(), value) != found->second.end();
  }
  // Whether the policy lets the piece compute its stages. A fused kernel named by the policy must be used wherever `serves`
  // returns true for it. If the policy names a kernel for the single stage, no fused kernel may compute that stage.
  template <class Serves>
  bool allowed(const PlacedPiece& piece, size_t phase, Serves serves) const {
    for (size_t k = piece.first; k < piece.end(); ++k) {
      const Named& named = named_[phase * stages_ + k];
      bool other = false, own = false;
      for (const PieceKind* run : named.runs) {
        own |= run == piece.kind;
        other |= run != piece.kind && serves(*run);
      }
      if (!own && (other || (named.stage && piece.kind->stages() > 1))) return false;
    }
    return true;
  }

 private:
  template <class Op>
  const PieceKind* kind_of(const typename Op::Problem& problem, int64_t rows, size_t stages, size_t phase,
                           bool experts, std::vector<StageSlot> sources);
  template <class Op>
  void add_stage(size_t stage, size_t phase);
  template <class Op>
  void add_run(size_t stage, size_t phase);
  Status check_forced() const;
  Status check_named() const;

  const DeviceInfo* device_ = nullptr;
  const Catalog* catalog_ = nullptr;
  const Graph* graph_ = nullptr;
  const std::vector<StepPhase>* phases_ = nullptr;
  Policy policy_;
  std::string_view without_;
  int64_t choice_tokens_ = 0;
  size_t stages_ = 0;
  std::vector<std::unique_ptr<PieceKind>> kinds_;
  std::vector<std::vector<const PieceKind*>> at_;
  std::vector<std::pair<size_t, size_t>> reach_;
  std::map<std::pair<size_t, const PieceKind*>, std::vector<ValueId>> hidden_;
  // Kernels that the policy names for a stage: kernels of its own operation, or of runs that include it.
  struct Named {
    bool stage = false;
    std::vector<const PieceKind*> runs = {};
  };
  std::vector<Named> named_;  // for each stage in each phase
};

}  // namespace sluice
