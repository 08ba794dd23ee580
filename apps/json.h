// Answers as JSON, ending in a newline. json.cc is the one file that includes a JSON library.
#pragma once
#include <string>
#include <vector>

#include "apps/bench_model.h"
#include "apps/draft.h"
#include "apps/eval.h"
#include "apps/explain_model.h"
#include "apps/inspect.h"
#include "apps/moe_layer.h"
#include "graph/any_op.h"

namespace sluice::apps {

std::string ops_json();
std::string contract_json(AnyProblem& problem);
std::string decision_json(AnyProblem& problem, const DeviceInfo& device, const Decision& decision);
std::string sweep_json(AnyProblem& problem, const DeviceInfo& device, const std::vector<TableStep>& steps);
std::string model_choices_json(const ModelChoices& choices, const DeviceInfo& device);
// The tokenizer says what tokens with log probabilities are.
std::string reply_json(const Reply& reply, const Tokenizer& tokenizer);
std::string eval_json(const EvalReport& report);
std::string bench_json(const BenchReport& report);
std::string inspection_json(const Inspection& inspection);
std::string moe_layer_json(const MoeLayerReport& report);
std::string draft_json(const DraftReport& report);
// no_gpu: why `here` has no GPU; empty if it has one.
std::string devices_json(std::span<const DeviceInfo> here, const std::string& no_gpu,
                         std::span<const DeviceInfo> known);

}  // namespace sluice::apps
