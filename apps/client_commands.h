// The subcommands that ask a server, one function each.
#pragma once
#include <string>

#include "apps/client/bench_serve.h"
#include "apps/client/eval_server.h"
#include "apps/commands.h"

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

struct ServerEvalFiles {
  std::string output_json;  // empty: none
  bool quiet = false;
};
// kExitNo if a request failed.
int eval_server_command(const ServerEvalOptions& options, const ServerEvalFiles& files, Format format);
int eval_compare_command(const std::string& path_a, const std::string& path_b);

}  // namespace sluice::apps
