// The flags of sluice eval that evaluate a server instead of a model.
#pragma once
#include <functional>
#include <optional>

#include "apps/common/flags.h"
#include "apps/eval/eval.h"

namespace sluice::apps {

// Adds --server, --compare and their flags to the flags of sluice eval. The returned function runs the evaluation if one of the two was
// given; `options` holds the flags that both kinds of evaluation share.
using EvalByServer = std::function<std::optional<int>(const EvalOptions& options, bool json)>;
EvalByServer add_eval_server(CLI::App* eval);

}  // namespace sluice::apps
