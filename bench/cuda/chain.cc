// RMSNorm, gate, choice of experts and grouping as one recorded chain: what a layer runs in front of its experts. A kernel
// that is faster alone may slow the chain down, so this is what kernels are chosen by.
#include <algorithm>
#include <optional>

#include "cuda/copies.h"
#include "cuda/layer.h"
#include "cuda/suites.h"

namespace sluice::bench {
namespace {

using Step = Status (Layer::*)(Way*);

struct Plot {
  const char* impl;
  std::vector<Step> steps;
};

// Ways that have kernels; a complaint for each of the others.
std::vector<Way> ways_of(Layer& layer, std::vector<std::string>* complaints) {
  const Plot plots[] = {
      {"sluice-separate", {&Layer::norm, &Layer::gate, &Layer::route, &Layer::group}},
      {"sluice-grouped", {&Layer::norm, &Layer::gate, &Layer::route_group}},
      {"sluice-fused", {&Layer::norm, &Layer::gate_route, &Layer::group}},
  };
  std::vector<Way> out;
  for (const Plot& plot : plots) {
    Way way{.impl = plot.impl};
    Status status;
    for (const Step step : plot.steps)
      if (status.ok()) status = (layer.*step)(&way);
    if (status.ok()) {
      out.push_back(std::move(way));
    } else {
      complaints->push_back(way.impl + " left out: " + status.message);
    }
  }
  return out;
}

}  // namespace

Status Bench::chain() {
  std::vector<LayerShape> shapes = layer_shapes();
  std::erase_if(shapes, [&](const LayerShape& s) { return !wants(s.gate.model()); });
  auto left = static_cast<int64_t>(shapes.size());
  for (const LayerShape& shape : shapes) {
    share(left--);
    Gate gate(device_, shape.gate, options_.cold_bytes);
    SLUICE_TRY(gate.make(tokens_max()));
    for (const int64_t tokens : this->tokens()) {
      if (over(shape.gate.model(), tokens)) continue;
      Layer layer(gate, shape, tokens);
      SLUICE_TRY(layer.make());
      layer.read_normed();
      const RouterGemm::Problem problem = shape.gate.problem(tokens);
      for (const bool copying : {false, true}) {
        // The floor is the gate's: everything else could stay on the chip.
        Contest contest{.suite = "routing",
                        .op = "chain",
                        .model = shape.gate.model(),
                        .note = copying ? "with copies" : "alone",
                        .tokens = tokens,
                        .bytes = RouterGemm::bytes(problem),
                        .flops = RouterGemm::flops(problem)};
        contest.launches = launches_for(shape.gate.weight_bytes(), contest.bytes, contest.flops);
        contest.poison = [&] { return layer.poison_outputs(); };
        contest.verify = [&](Who) -> Result<std::string> {
          for (const auto check : {&Layer::check_norm, &Layer::check_choice, &Layer::check_grouping}) {
            Result<std::string> wrong = (layer.*check)();
            if (!wrong.ok() || !wrong.value().empty()) return wrong;
          }
          return std::string();
        };
        std::vector<std::string> complaints;
        std::vector<Way> ways = ways_of(layer, &complaints);
        if (!ways.empty()) {
          // What the cost models choose, and the same in plain launches.
          Way best = *std::min_element(ways.begin(), ways.end(),
                                       [](const Way& a, const Way& b) { return a.cost_us < b.cost_us; });
          best.impl = "sluice";
          contest.contenders.push_back(contender_of(best, true));
          best.impl = "sluice-plain-launches";
          contest.contenders.push_back(contender_of(best, false));
        }
        for (const Way& way : ways) contest.contenders.push_back(contender_of(way, true));
        std::optional<Copies> copies;
        if (copying) SLUICE_TRY(copies.emplace().start());
        SLUICE_TRY(hold(contest, std::move(complaints)));
      }
    }
  }
  return {};
}

}  // namespace sluice::bench
