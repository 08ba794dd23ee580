#include "apps/eval/eval_server_command.h"

#include <cstdio>

#include "apps/common/ask_server.h"
#include "apps/common/descriptors.h"

namespace sluice::apps {

int eval_server_command(const ServerEvalOptions& options, const ServerEvalFiles& files, Format format) {
  if (!files.output_json.empty())
    if (const Status status = can_write("--output-json", files.output_json); !status.ok())
      return wrong_use(status.message);
  allow_many_descriptors();
  const auto eval = evaluate_server(options, counter("answers", files.quiet));
  if (!eval.ok()) return wrong_use(eval.status().message);
  const std::string json = server_eval_json(eval.value());
  std::fputs((format == Format::kJson ? json : server_eval_text(eval.value())).c_str(), stdout);
  if (!files.output_json.empty())
    if (const Status status = write_text(files.output_json, json); !status.ok())
      return wrong_use(status.message);
  return eval.value().failed == 0 ? kExitOk : kExitNo;
}

int eval_compare_command(const std::string& path_a, const std::string& path_b) {
  const auto comparison = compare_evals(path_a, path_b);
  if (!comparison.ok()) return wrong_use(comparison.status().message);
  std::fputs(comparison_text(comparison.value()).c_str(), stdout);
  return kExitOk;
}

}  // namespace sluice::apps
