// A suite's page in Markdown: its figures and its tables.
#pragma once
#include "report/panels.h"

namespace sluice::bench {

enum class SuiteOf : uint8_t {
  kOperations,
  kWholeModels,  // times of engine steps, over the tokens of a step
  kServers,      // times that clients see, over concurrent requests (serving_page.cc)
};

// A file of rows, and the page made from it.
struct Suite {
  std::string_view name;   // "router": router.csv, router.md
  std::string_view title;  // of the page
  std::string_view figures =
      {};  // prefix of the figures' file names, if another suite has the same operations
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
  std::string_view models;  // the format of a row's model: "hidden x experts"
};
// The title of an operation and the format of its models. An unknown operation has its own name as title.
OpWords words_of_op(std::string_view op);

// "bf16_moe_layer": the file has the suffix .svg and is next to the page, which links it.
std::string figure_name(const Suite& suite, const Figure& figure);

// "![decode: microseconds over tokens](engine_decode.svg)", followed by an empty line.
std::string picture_of(const Suite& suite, const Figure& figure);

// The text under a table's heading: the commits of Sluice's rows, and the missing baselines of the figure.
std::string caption_of(const Figure& figure, const Panel& panel);

// "- flashinfer-tinygemm: flashinfer 0.6.18": each implementation with its measured versions.
std::string versions_of(const std::vector<Figure>& figures);

std::string serving_page_of(const Suite& suite, const std::vector<Figure>& figures);
std::string page_of(const Suite& suite, const std::vector<Figure>& figures);

}  // namespace sluice::bench
