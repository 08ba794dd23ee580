// Figures and tables from measured rows; needs no GPU.
#pragma once
#include <filesystem>
#include <vector>

#include "base/status.h"

namespace sluice::apps {

struct ReportOptions {
  std::filesystem::path from = "bench/measured/h200";  // holds <suite>.csv
  std::filesystem::path to = "docs/benchmarks";        // gets <suite>.md, <op>.svg
  std::filesystem::path readme = {};                   // gets its table between its marks; empty: none does
};

// The files written, in order. Writes nothing if a row is wrong, or a mark of the README is missing: kCorrupt names file and
// line. kIo: no suite's file is in `from`, or a file could not be read or written.
Result<std::vector<std::filesystem::path>> write_report(const ReportOptions& options);

// As a command: prints the names of what it wrote.
int bench_report_command(const ReportOptions& options);

}  // namespace sluice::apps
