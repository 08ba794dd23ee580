// RMSNorm, gate, choice of experts and grouping, captured as one chain of launches: the part of a layer before its experts. A kernel
// that is faster alone may slow the chain down, so the time of the chain decides which kernels are used.
#include <cstdint>
#include <optional>

#include "cuda/copies.h"
#include "cuda/layer.h"
#include "cuda/suites.h"

namespace sluice::bench {
namespace {

using Enqueue = Status (Layer::*)(Way*);

struct Plot {
  const char* impl;
  std::vector<Enqueue> steps;
  bool dependent = true;
  int64_t tokens_max = INT64_MAX;
};

// src/nn/moe/layer.cc runs the first combination; the others are for comparison.
const Plot kPlots[] = {
    {"sluice", {&Layer::norm, &Layer::gate, &Layer::route_group}},
    {"sluice-plain-launches", {&Layer::norm, &Layer::gate, &Layer::route_group}, false},
    {"sluice-separate", {&Layer::norm, &Layer::gate, &Layer::route, &Layer::group}},
    // Above 64 tokens there is no fused kernel, so this combination equals the first.
    {"sluice-fused", {&Layer::norm, &Layer::gate_route, &Layer::group}, true, 64},
};

// Adds a contender for each combination that has kernels, and a complaint for each other one.
void add_ways(Layer& layer, Contest* contest, std::vector<std::string>* complaints) {
  for (const Plot& plot : kPlots) {
    if (contest->tokens > plot.tokens_max) continue;
    Way way{.impl = plot.impl};
    Status status;
    for (const Enqueue step : plot.steps)
      if (status.ok()) status = (layer.*step)(&way);
    if (status.ok()) {
      contest->contenders.push_back(contender_of(way, plot.dependent));
    } else {
      complaints->push_back(way.impl + " skipped: " + status.message);
    }
  }
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
        // The byte floor counts only the gate's bytes, because all other data could stay on the chip.
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
        add_ways(layer, &contest, &complaints);
        std::optional<Copies> copies;
        if (copying) SLUICE_TRY(copies.emplace().start());
        SLUICE_TRY(hold(contest, std::move(complaints)));
      }
    }
  }
  return {};
}

}  // namespace sluice::bench
