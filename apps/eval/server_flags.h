// The flags of sluice eval that ask a server in place of a model.
#pragma once
#include <functional>
#include <optional>

#include "apps/common/flags.h"
#include "apps/eval/eval.h"

namespace sluice::apps {

// --server and --compare, and all that belongs to them, beside the flags of sluice eval. What it returns runs the evaluation, if one of
// the two was named; `options` are those that both kinds of evaluation have.
using EvalByServer = std::function<std::optional<int>(const EvalOptions& options, bool json)>;
EvalByServer add_eval_server(CLI::App* eval);

}  // namespace sluice::apps
