// Answers as JSON, ending in a newline: what several subcommands share of them.
#pragma once
#include <string>
#include <vector>

#include "apps/common/step_timing.h"
#include "base/json.h"
#include "dispatch/device.h"

namespace sluice::apps {

// What is no UTF-8 (a token may end within a character) becomes U+FFFD.
std::string json_text(const OrderedJson& json);
OrderedJson device_json(const DeviceInfo& device);
OrderedJson timings_json(const std::vector<StepTiming>& timings);

}  // namespace sluice::apps
