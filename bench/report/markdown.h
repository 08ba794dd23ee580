// Lines of Markdown tables.
#pragma once
#include <set>
#include <string>
#include <vector>

namespace sluice::bench {

std::string printed(const char* format, double value);
std::string us_text(double us);  // three digits: "2.13", "21.3", "213"
std::string line_of(const std::vector<std::string>& cells);
std::string rule_of(
    size_t columns,
    size_t left);  // the line below the head; aligns the first `left` columns left, the others right
std::string joined(const std::set<std::string>& words, const char* between);

}  // namespace sluice::bench
