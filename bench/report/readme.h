// The README's table: one layer of one model, in bursts and sustained, compared with the fastest other library.
#pragma once
#include "report/panels.h"

namespace sluice::bench {

// `sluice bench report` writes the text between these marks, and a test checks that it matches the rows.
inline constexpr std::string_view kReadmeSuite = "mxfp4";
inline constexpr std::string_view kReadmeBegin = "<!-- sluice bench report: begin -->\n";
inline constexpr std::string_view kReadmeEnd = "<!-- sluice bench report: end -->\n";

// From the rows of mxfp4.csv: moe_layer of gpt-oss-120b, uniform routing. Empty if there are no such rows.
std::string readme_table(const std::vector<Figure>& figures);

// `readme` with `table` between its marks. kCorrupt names the missing mark.
Result<std::string> with_table(const std::string& readme, const std::string& table);

}  // namespace sluice::bench
