// The gate and the choice of experts in one launch, compared with the two kernels back to back.
#include "cuda/layer.h"
#include "cuda/suites.h"

namespace sluice::bench {
namespace {

constexpr int64_t kTokensMax = 512;  // above, the gate's GEMM dominates

Contest contest_of(const LayerShape& shape, const RouterRoute::Problem& problem, bool dependent) {
  Contest contest{.suite = "router",
                  .op = "router_route_fused",
                  .model = shape.gate.model(),
                  .note = dependent ? "dependent" : "plain",
                  .tokens = problem.route.tokens,
                  .bytes = RouterRoute::bytes(problem),
                  .flops = RouterRoute::flops(problem)};
  return contest;
}

}  // namespace

Status Bench::fused() {
  std::vector<LayerShape> shapes = layer_shapes();
  std::erase_if(shapes, [&](const LayerShape& s) { return !wants(s.gate.model()); });
  auto left = static_cast<int64_t>(shapes.size());
  for (const LayerShape& shape : shapes) {
    share(left--);
    Gate gate(device_, shape.gate, options_.cold_bytes);
    SLUICE_TRY(gate.make(tokens_max()));
    for (const int64_t tokens : this->tokens()) {
      if (tokens > kTokensMax || over(shape.gate.model(), tokens)) continue;
      Layer layer(gate, shape, tokens);
      SLUICE_TRY(layer.make());
      for (const bool dependent : {false, true}) {
        Contest contest = contest_of(shape, layer.router_route(), dependent);
        contest.launches = launches_for(shape.gate.weight_bytes(), contest.bytes, contest.flops);
        contest.poison = [&] { return layer.poison_outputs(); };
        contest.verify = [&](Who) { return layer.check_choice(); };
        std::vector<std::string> complaints;
        SLUICE_TRY(add_ours<RouterRoute>(
            layer.memory(), layer.router_route(), [&layer](int64_t i) { return layer.router_route_args(i); },
            dependent, &contest, &complaints));
        Way two{.impl = "sluice-two-kernels"};
        Status status = layer.gate(&two);
        if (status.ok()) status = layer.route(&two);
        if (status.ok()) {
          contest.contenders.push_back(contender_of(two, dependent));
        } else {
          complaints.push_back(two.impl + " skipped: " + status.message);
        }
        SLUICE_TRY(hold(contest, std::move(complaints)));
      }
    }
  }
  return {};
}

}  // namespace sluice::bench
