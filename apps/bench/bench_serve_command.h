// The command `sluice bench serve`: runs bench_serve() and writes its output and files.
#pragma once
#include <string>

#include "client/bench_serve.h"

namespace sluice::apps {

// The files that `sluice bench serve` writes besides its printed report.
struct ServeBenchFiles {
  std::string output_json, svg;  // empty: not written
  // Whether to write one file per run, as vLLM's client does. Its default name contains the backend, the load, the model and the date.
  bool save_result = false;
  std::string result_dir, result_filename;
  Detail detail = Detail::kTotals;
  bool quiet = false;  // no progress line
};
// Also returns kExitWrongUse if no request of a run succeeded.
int bench_serve_command(const ServeBenchOptions& options, const ServeBenchFiles& files);

}  // namespace sluice::apps
