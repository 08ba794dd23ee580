// Writes tables and figures from measured rows. Needs no GPU.
#pragma once
#include <filesystem>
#include <vector>

#include "base/status.h"

namespace sluice::apps {

struct ReportOptions {
  std::filesystem::path from = "bench/measured/h200";  // folder with the files <suite>.csv
  std::filesystem::path to = "docs/benchmarks";        // folder to which <suite>.md and <op>.svg are written
  std::filesystem::path readme = {};  // file in which the table between the markers is replaced; empty: none
};

// Returns the written files in order. kCorrupt: a row is wrong or the README lacks a marker; then nothing is written, and the message names file
// and line. kIo: `from` has no file of a suite, or a file cannot be read or written.
Result<std::vector<std::filesystem::path>> write_report(const ReportOptions& options);

// The command: writes the report and prints the names of its files.
int bench_report_command(const ReportOptions& options);

}  // namespace sluice::apps
