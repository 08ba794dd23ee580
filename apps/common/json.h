// JSON output that several subcommands share.
#pragma once
#include <string>
#include <vector>

#include "apps/common/step_timing.h"
#include "base/json.h"
#include "dispatch/device.h"

namespace sluice::apps {

// The text of `json`, which ends in a newline. Invalid UTF-8, such as a token that ends within a character, becomes U+FFFD.
std::string json_text(const OrderedJson& json);
OrderedJson device_json(const DeviceInfo& device);
OrderedJson timings_json(const std::vector<StepTiming>& timings);

}  // namespace sluice::apps
