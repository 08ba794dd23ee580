// Formats decisions as text and as data.
#pragma once
#include <string>

#include "dispatch/plan.h"

namespace sluice {

// Text with the problem, the device, and for each candidate its cost, workspace, configurations and launches, or why it does not accept the problem.
std::string explain_text(std::string_view op, const std::string& problem, const DeviceInfo& device,
                         const Decision& decision);

template <class Op>
std::string explain(const typename Op::Problem& problem, const DeviceInfo& device, const Catalog& catalog,
                    const Policy& policy = {}) {
  return explain_text(Op::kName, fields_text(problem), device,
                      decide_in_words<Op>(problem, device, catalog.table<Op>(), policy));
}

// Devices that Sluice knows from data sheets and its own measurements; they need not be present. kInvalidArgument lists
// the known names.
Result<DeviceInfo> known_device(std::string_view name);
std::span<const DeviceInfo> known_devices();
std::string known_device_names();

}  // namespace sluice
