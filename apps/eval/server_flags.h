// The flags of sluice eval that evaluate a server instead of a model.
#pragma once
#include <functional>
#include <optional>

#include "apps/common/flags.h"
#include "apps/eval/eval.h"

namespace sluice::apps {

// Adds --server, --compare and the flags that belong to them. The returned function runs the evaluation or comparison if --server or --compare
// was given, and else returns nullopt. `options` has the flags that these evaluations share with sluice eval of a model.
using EvalByServer = std::function<std::optional<int>(const EvalOptions& options, bool json)>;
EvalByServer add_eval_server(CLI::App* eval);

}  // namespace sluice::apps
