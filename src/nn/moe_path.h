// The experts of a layer as one operation: its plans, and the counts of tokens at which that is the faster way.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "nn/moe_problems.h"

namespace sluice {

class MoeAsOne {
 public:
  // Serves from `first` tokens up to the next step's.
  struct Step {
    int64_t first;
    MoePath path;
  };
  // parts_us(n) is what the models say of the parts for n tokens. Nothing where the parts are the way at every count from 0 to
  // tokens_max. Under Policy::batch_invariant one path serves all counts: the one that costs less on average over 1, 2, 4 ...
  // and tokens_max tokens.
  static std::optional<MoeAsOne> make(const DeviceInfo& device, const Catalog& catalog,
                                      const MoeProblems& problems, int64_t tokens_max, const Policy& policy,
                                      const std::function<double(int64_t)>& parts_us);
  MoePath at(int64_t tokens) const;
  const std::vector<Step>& steps() const { return steps_; }
  // Up to the last count that they serve.
  const PlanTable<RouterRoute>& route() const { return route_; }
  const PlanTable<ExpertMlp>& experts() const { return experts_; }

 private:
  MoeAsOne(PlanTable<RouterRoute> route, PlanTable<ExpertMlp> experts)
      : route_(std::move(route)), experts_(std::move(experts)) {}
  // No cost: kernels in turn, which are the parts.
  std::optional<double> cost_us(int64_t tokens, const DeviceInfo& device) const;
  bool wins_on_average(const DeviceInfo& device, int64_t tokens_max,
                       const std::function<double(int64_t)>& parts_us) const;

  PlanTable<RouterRoute> route_;
  PlanTable<ExpertMlp> experts_;
  std::vector<Step> steps_;
};

}  // namespace sluice
