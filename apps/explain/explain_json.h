// JSON output of sluice explain.
#pragma once
#include <string>
#include <vector>

#include "apps/explain/draft_choices.h"
#include "apps/explain/explain_model.h"
#include "graph/any_op.h"

namespace sluice::apps {

std::string ops_json();
std::string contract_json(AnyProblem& problem);
std::string decision_json(AnyProblem& problem, const DeviceInfo& device, const Decision& decision);
std::string sweep_json(AnyProblem& problem, const DeviceInfo& device, const std::vector<TableStep>& steps);
std::string model_choices_json(const ModelChoices& choices, const DeviceInfo& device);
std::string draft_choices_json(const DraftChoices& choices, const DeviceInfo& device);

}  // namespace sluice::apps
