// sluice bench serve as a command: what it prints and writes.
#pragma once
#include <string>

#include "client/bench_serve.h"

namespace sluice::apps {

// What sluice bench serve writes besides its block.
struct ServeBenchFiles {
  std::string output_json, svg;  // empty: none
  // As vLLM's client does: one file for each run, whose name says backend, load, model and date unless it is given.
  bool save_result = false;
  std::string result_dir, result_filename;
  Detail detail = Detail::kTotals;
  bool quiet = false;  // no progress
};
// kExitWrongUse too if no request of a run succeeded.
int bench_serve_command(const ServeBenchOptions& options, const ServeBenchFiles& files);

}  // namespace sluice::apps
