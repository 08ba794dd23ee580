// The plans of a layer's stages, and which path serves each count of tokens.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "nn/moe_stages.h"

namespace sluice {

// Counts of tokens that one backend of the experts serves.
struct MoePhase {
  int64_t first = 0, last = 0;
  std::string kernel = {};  // a word of Policy::force for the experts; empty: the cost models choose
  // The path that the kernel needs; none: free.
  std::optional<MoePath> path() const;
};
// One phase, or two where decode and prefill differ. kInvalidArgument names the word, and the kernels of experts that this device
// has; also where `policy` wants one kernel for all counts and the phases would have two.
Result<std::vector<MoePhase>> phases_of(const MoeBackend& backend, const DeviceInfo& device,
                                        const Catalog& catalog, int64_t tokens_max, const Policy& policy);
// The policy with a phase's kernel: of the routed experts' stages.
Policy experts_policy(const Policy& policy, const MoePhase& phase);
// That, or the policy as it is: of the layer's stage of this name.
Policy stage_policy(std::string_view stage, const Policy& policy, const MoePhase& phase);

class MoePlans {
 public:
  // Serves from `first` tokens up to the next step's.
  struct Step {
    int64_t first;
    MoePath path;
  };
  // Under Policy::batch_invariant one path serves all counts: the one that costs less on average over 1, 2, 4 ... and the last.
  static Result<MoePlans> make(const DeviceInfo& device, const Catalog& catalog, const MoeConfig& config,
                               const MoePhase& phase, const Policy& policy);
  int64_t last() const { return phase_.last; }
  MoePath at(int64_t tokens) const;
  // The stage's table; none where it never runs.
  template <size_t kAt>
  const auto& table() const {
    return std::get<kAt>(tables_);
  }

 private:
  template <class>
  struct TablesOf;
  template <class... Op>
  struct TablesOf<std::tuple<MoeStage<Op>...>> {
    using type = std::tuple<std::optional<PlanTable<Op>>...>;
  };
  MoePlans(const DeviceInfo& device, const Catalog& catalog, const MoeConfig& config, const MoePhase& phase,
           const Policy& policy)
      : device_(device), catalog_(&catalog), config_(config), phase_(phase), policy_(policy) {
    last_of_.fill(-1);
  }
  // All stages of a path that have no table yet, up to `last` tokens.
  Status plan(MoePath path, int64_t last);
  // Plans the paths beside the parts that have kernels here, each up to the largest count that one takes.
  void plan_others(const Policy& policy);
  void forget_unused();
  // What the models say of the stages that paths do not share. No cost: beyond the path's last count, or kernels in turn,
  // which are the parts.
  std::optional<double> cost_us(MoePath path, int64_t tokens) const;
  // By cost: for one count, or on average.
  MoePath cheapest(int64_t tokens) const;
  MoePath cheapest_on_average() const;
  void choose_paths();

  DeviceInfo device_;
  const Catalog* catalog_;
  MoeConfig config_;
  MoePhase phase_;
  Policy policy_;
  TablesOf<std::remove_const_t<decltype(kMoeStages)>>::type tables_;
  std::vector<Step> steps_;
  std::array<int64_t, kMoePaths.size()> last_of_;  // of each path; -1: it is not planned
};

}  // namespace sluice
