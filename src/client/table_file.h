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
// Reads the given columns of every row. A file whose name ends in .csv has a header and is read by RFC 4180, including quoted line breaks;
// any other file has one JSON object per line. The messages of kIo and kCorrupt name the file, the line and the column.
Result<std::vector<TableRow>> read_table(const std::string& path, std::span<const std::string_view> columns);

}  // namespace sluice
