// Writes tables and figures from measured rows; needs no GPU.
#pragma once
#include <filesystem>
#include <vector>

#include "base/status.h"

namespace sluice::apps {

struct ReportOptions {
  std::filesystem::path from = "bench/measured/h200";  // contains <suite>.csv
  std::filesystem::path to = "docs/benchmarks";        // output folder for <suite>.md and <op>.svg
  std::filesystem::path readme = {};  // the table between its markers is replaced; empty: no README
};

// Returns the written files in order. Writes nothing if a row is wrong or the README lacks a marker: kCorrupt names file and line. kIo:
// `from` contains no suite file, or a file cannot be read or written.
Result<std::vector<std::filesystem::path>> write_report(const ReportOptions& options);

// The command: writes the report and prints the names of its files.
int bench_report_command(const ReportOptions& options);

}  // namespace sluice::apps
