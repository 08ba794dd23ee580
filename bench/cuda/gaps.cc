// The cost of a plain launch between dependent launches of expert layers, in bursts and sustained. The suites rest before
// sustained runs, because without a rest the power limit lowered the clock (docs/lab/cuda-step-launches.md).
#include <algorithm>
#include <array>

#include "cuda/experts/bed.h"
#include "cuda/kernels.h"
#include "cuda/suites.h"

namespace sluice::bench {
namespace {

// What is launched before a layer of the chain.
struct Gap {
  const char* name;
  enum What : uint8_t { kNothing, kDependent, kPlain } what;
  int64_t every;  // in layers
};
// Two orders of measuring, because a GPU that exceeded its power limit lowers its clock for the next contender.
struct Order {
  const char* name;
  std::array<Gap, 5> gaps;
};
constexpr Gap kNothing{"nothing", Gap::kNothing, 1}, kDependent{"dependent-launch", Gap::kDependent, 1},
    kPlain{"plain-launch", Gap::kPlain, 1}, kFourth{"plain-launch-every-4", Gap::kPlain, 4},
    kAgain{"nothing-again", Gap::kNothing, 1};
constexpr Order kOrders[] = {{"nothing first", {kNothing, kDependent, kPlain, kFourth, kAgain}},
                             {"plain first", {kPlain, kFourth, kNothing, kDependent, kAgain}}};

Step after_gap(const Gap& gap, Step layer, Stream stream) {
  return [gap, layer = std::move(layer), stream](int64_t i) -> Status {
    if (gap.what != Gap::kNothing && i % gap.every == 0) {
      const Dependent dependent(stream, gap.what == Gap::kDependent);
      SLUICE_TRY(empty_kernel(stream));
    }
    return layer(i);
  };
}

}  // namespace

Status Bench::gaps() {
  power_.emplace();
  if (!power_->problem().empty())
    SLUICE_TRY(report_({}, {"power and clock are not recorded: " + power_->problem()}));
  const std::vector<int64_t> counts =
      options_.tokens.empty() ? std::vector<int64_t>{7, 23, 77, 300, 1500} : options_.tokens;
  std::vector<ExpertShape> shapes = mxfp4_shapes();
  for (ExpertShape& s : bf16_shapes()) shapes.push_back(std::move(s));
  for (const ExpertShape& s : shapes) {
    if (options_.models.empty() ? std::string_view(s.model) != "gpt-oss-120b" : !wants(s.model)) continue;
    const int64_t tokens_max = *std::max_element(counts.begin(), counts.end());
    Experts experts(device_, s);
    std::vector<Tensor> x;
    std::vector<std::string> complaints;
    SLUICE_TRY(experts.memory().random(DType::kBF16, {tokens_max, s.hidden}, 1, kTurns, &x));
    SLUICE_TRY(experts.make({}, &complaints));
    std::vector<Draw> draws;
    SLUICE_TRY(make_draws(experts.memory(), s, Spread::kUniform, tokens_max, kDraws, &draws));
    for (const int64_t tokens : counts) {
      Bed bed(experts, x, draws, tokens);
      SLUICE_TRY(bed.make());
      const Result<Step> layer = bed.layer();
      if (!layer.ok()) return layer.status();
      for (const Order& order : kOrders) {
        Contest contest = bed.contest("gaps", "moe_layer_behind", order.name);
        for (const Gap& gap : order.gaps)
          contest.contenders.push_back(
              contender_of(gap.name, after_gap(gap, layer.value(), bed.memory().stream())));
        contest.poison = [&] { return bed.poison_outputs(); };
        contest.verify = [&](Who who) { return bed.check(bed.y(), who); };
        SLUICE_TRY(hold_paced(contest, std::move(complaints)));
        complaints.clear();
      }
    }
  }
  return power_.reset(), Status{};
}

}  // namespace sluice::bench
