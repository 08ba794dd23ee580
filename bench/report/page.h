// A suite's page in Markdown: its figures and its tables.
#pragma once
#include "report/panels.h"

namespace sluice::bench {

// A file of rows, and the page made of it.
struct Suite {
  std::string_view name;   // "router": router.csv, router.md
  std::string_view title;  // of the page
};
inline constexpr Suite kSuites[] = {
    {"router", "Router"}, {"routing", "Routing and grouping"}, {"mxfp4", "Experts with MXFP4 weights"}};

struct OpWords {
  std::string_view op, title;
  std::string_view models;  // what the model of a row says: "hidden x experts"
};
// An operation without words of its own is called by its name.
OpWords words_of_op(std::string_view op);

// Figures are linked as <op>.svg and <op>.png beside the page.
std::string page_of(const Suite& suite, const std::vector<Figure>& figures);

}  // namespace sluice::bench
