// Reads rows with named cells from CSV or from lines of JSON.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sluice {

struct TableRow {
  std::string where;  // "gpqa.csv line 12"
  std::map<std::string, std::string> cells;
};
// Reads these columns of every row. Files whose names end in .csv are tables with a header (RFC 4180, including quoted line breaks);
// other files have one object per line. kIo or kCorrupt names file, line and column.
Result<std::vector<TableRow>> read_table(const std::string& path, std::span<const std::string_view> columns);

}  // namespace sluice
