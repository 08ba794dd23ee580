// Every piece that a graph's stages may be computed by.
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

// Counts of tokens for which a kernel of the experts is named; empty: none is.
struct StepPhase {
  int64_t first = 0, last = 0;
  std::string kernel = {};  // a word of Policy::force, for stages with Stage::experts alone
};

struct StepPolicy {
  Policy policy = {};
  std::vector<StepPhase> phases = {};  // none: one, without a name
  std::string_view without = {};       // a fused operation of which no kernel is taken
};

// A piece at one place of the graph.
struct PlacedPiece {
  size_t first = 0;  // of its stages
  const PieceKind* kind = nullptr;
  size_t end() const { return first + kind->stages(); }
};

// The operations of a graph's stages, and those of several that cover some of them.
std::vector<std::string_view> ops_of(const Graph& graph);
// The policy with the words alone that speak of them: for one of several graphs under one policy.
Policy policy_of(const Policy& policy, const Graph& graph);

// The pieces of each stage on its own, and of all runs that a fused operation covers; in each phase.
class Pieces {
 public:
  // kInvalidArgument: a word of the policy that speaks of no operation here.
  static Result<Pieces> make(const DeviceInfo& device, const Catalog& catalog, const Graph& graph,
                             const std::vector<StepPhase>& phases, const Policy& policy,
                             std::string_view without);
  // Those that begin at a stage, in a phase; of equal cost the first counts.
  const std::vector<const PieceKind*>& at(size_t stage, size_t phase) const {
    return at_[phase * stages_ + stage];
  }
  const std::vector<std::unique_ptr<PieceKind>>& kinds() const { return kinds_; }
  // From the first to past the last stage that some piece computes together with this one.
  std::pair<size_t, size_t> reach(size_t stage) const { return reach_[stage]; }
  // Values that the piece does not write.
  bool hides(const PlacedPiece& piece, ValueId value) const {
    const auto found = hidden_.find({piece.first, piece.kind});
    return found != hidden_.end() &&
           std::find(found->second.begin(), found->second.end(), value) != found->second.end();
  }
  // Whether the policy lets the piece compute its stages. A kernel of several stages that it names runs wherever `serves` says that it
  // can; a stage whose own kernel it names is no other kernel's.
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
  Status check_words() const;
  Status check_named() const;

  const DeviceInfo* device_ = nullptr;
  const Catalog* catalog_ = nullptr;
  const Graph* graph_ = nullptr;
  const std::vector<StepPhase>* phases_ = nullptr;
  Policy policy_;
  std::string_view without_;
  size_t stages_ = 0;
  std::vector<std::unique_ptr<PieceKind>> kinds_;
  std::vector<std::vector<const PieceKind*>> at_;
  std::vector<std::pair<size_t, size_t>> reach_;
  std::map<std::pair<size_t, const PieceKind*>, std::vector<ValueId>> hidden_;
  // What the policy names for a stage: its own operation, or runs that compute it.
  struct Named {
    bool stage = false;
    std::vector<const PieceKind*> runs = {};
  };
  std::vector<Named> named_;  // of each stage in each phase
};

}  // namespace sluice
