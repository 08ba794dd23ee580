// A suite's page in Markdown: its figures and its tables.
#pragma once
#include "report/panels.h"

namespace sluice::bench {

// A file of rows, and the page made of it.
struct Suite {
  std::string_view name;   // "router": router.csv, router.md
  std::string_view title;  // of the page
  std::string_view figures =
      {};                     // in front of its figures' names, where another suite has the same operations
  bool whole_models = false;  // its times are of steps of an engine, its tokens those of a step
};
inline constexpr Suite kSuites[] = {{"router", "Router"},
                                    {"routing", "Routing and grouping"},
                                    {"mxfp4", "Experts with MXFP4 weights"},
                                    {"bf16", "Experts with bf16 weights", "bf16_"},
                                    {"engine", "Whole models", "engine_", true}};

struct OpWords {
  std::string_view op, title;
  std::string_view models;  // what the model of a row says: "hidden x experts"
};
// An operation without words of its own is called by its name.
OpWords words_of_op(std::string_view op);

// "bf16_moe_layer": its file is that with .svg, beside the page, which links it.
std::string figure_name(const Suite& suite, const Figure& figure);

std::string page_of(const Suite& suite, const std::vector<Figure>& figures);

}  // namespace sluice::bench
