// A suite's page in Markdown: its figures and its tables.
#pragma once
#include "report/panels.h"

namespace sluice::bench {

enum class SuiteOf : uint8_t {
  kOperations,
  kWholeModels,  // times are of steps of an engine, tokens those of a step
  kServers,      // times are those that clients see, tokens requests at once: serving_page.cc
};

// A file of rows, and the page made of it.
struct Suite {
  std::string_view name;   // "router": router.csv, router.md
  std::string_view title;  // of the page
  std::string_view figures =
      {};  // in front of its figures' names, where another suite has the same operations
  SuiteOf of = SuiteOf::kOperations;
};
inline constexpr Suite kSuites[] = {{"router", "Router"},
                                    {"routing", "Routing and grouping"},
                                    {"mxfp4", "Experts with MXFP4 weights"},
                                    {"bf16", "Experts with bf16 weights", "bf16_"},
                                    {"engine", "Whole models", "engine_", SuiteOf::kWholeModels},
                                    {"serving", "Servers under load", "serving_", SuiteOf::kServers}};

struct OpWords {
  std::string_view op, title;
  std::string_view models;  // what the model of a row says: "hidden x experts"
};
// An operation without words of its own is called by its name.
OpWords words_of_op(std::string_view op);

// "bf16_moe_layer": its file is that with .svg, beside the page, which links it.
std::string figure_name(const Suite& suite, const Figure& figure);

// "![decode: microseconds over tokens](engine_decode.svg)", with the empty line behind it.
std::string picture_of(const Suite& suite, const Figure& figure);

// Under a table's heading: the commits of our rows, and which peers of the figure are not there.
std::string caption_of(const Figure& figure, const Panel& panel);

// "- flashinfer-tinygemm: flashinfer 0.6.18": each implementation with the versions that were measured.
std::string versions_of(const std::vector<Figure>& figures);

std::string serving_page_of(const Suite& suite, const std::vector<Figure>& figures);
std::string page_of(const Suite& suite, const std::vector<Figure>& figures);

}  // namespace sluice::bench
