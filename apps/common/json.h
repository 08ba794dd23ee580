// JSON output that several subcommands share. All texts end in a newline.
#pragma once
#include <string>
#include <vector>

#include "apps/common/step_timing.h"
#include "base/json.h"
#include "dispatch/device.h"

namespace sluice::apps {

// Invalid UTF-8 becomes U+FFFD: a token may end within a character.
std::string json_text(const OrderedJson& json);
OrderedJson device_json(const DeviceInfo& device);
OrderedJson timings_json(const std::vector<StepTiming>& timings);

}  // namespace sluice::apps
