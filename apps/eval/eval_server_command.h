// The commands sluice eval --server and sluice eval --compare.
#pragma once
#include <string>

#include "apps/common/commands.h"
#include "client/eval_server.h"

namespace sluice::apps {

struct ServerEvalFiles {
  std::string output_json;  // empty: not written
  bool quiet = false;
};
// Returns kExitNo if a request failed.
int eval_server_command(const ServerEvalOptions& options, const ServerEvalFiles& files, Format format);
int eval_compare_command(const std::string& path_a, const std::string& path_b);

}  // namespace sluice::apps
