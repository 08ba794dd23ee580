#include "text/tool_json.h"

#include <utility>

#include "base/printable.h"
#include "base/utf8.h"

namespace sluice {

Result<OrderedJson> parameters_json(const FunctionTool& function) {
  if (function.parameters.empty()) return OrderedJson::object();
  auto parameters = parse_ordered_json(function.parameters, "parameters");
  if (!parameters.ok()) return invalid("function " + function.name + ": " + parameters.status().message);
  if (!parameters.value().is_object())
    return invalid("function " + function.name + ": wanted parameters that are a JSON object, found '" +
                   shortened(valid_utf8(function.parameters)) + "'");
  return parameters;
}

Result<OrderedJson> tool_json(const FunctionTool& function) {
  OrderedJson shown = {{"name", function.name}};
  if (!function.description.empty()) shown["description"] = function.description;
  if (!function.parameters.empty()) {
    auto parameters = parameters_json(function);
    if (!parameters.ok()) return parameters.status();
    shown["parameters"] = std::move(parameters).value();
  }
  return OrderedJson({{"type", "function"}, {"function", std::move(shown)}});
}

}  // namespace sluice
