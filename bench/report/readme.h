// The table of a README: one layer of one model, in bursts and sustained, beside the fastest peer.
#pragma once
#include "report/panels.h"

namespace sluice::bench {

// What stands between a README's marks is written by `sluice bench report` and held to the rows by a test.
inline constexpr std::string_view kReadmeSuite = "mxfp4";
inline constexpr std::string_view kReadmeBegin = "<!-- sluice bench report: begin -->\n";
inline constexpr std::string_view kReadmeEnd = "<!-- sluice bench report: end -->\n";

// Of the rows of mxfp4.csv: moe_layer of gpt-oss-120b, uniform routing. Empty if there are none.
std::string readme_table(const std::vector<Figure>& figures);

// `readme` with `table` between its marks. kCorrupt names the mark that is missing.
Result<std::string> with_table(const std::string& readme, const std::string& table);

}  // namespace sluice::bench
