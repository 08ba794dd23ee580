// The command line of what asks a server.
#pragma once
#include <functional>
#include <optional>

#include "apps/cli.h"
#include "apps/eval.h"

namespace sluice::apps {

Command add_bench_serve(CLI::App& bench);

// --server and --compare, and all that belongs to them, beside the flags of sluice eval. What it returns runs the evaluation, if one of
// the two was named; `options` are those that both kinds of evaluation have.
using EvalByServer = std::function<std::optional<int>(const EvalOptions& options, bool json)>;
EvalByServer add_eval_server(CLI::App* eval);

}  // namespace sluice::apps
