// Checks a line of fields from a user; see fields.h.
#pragma once
#include <string_view>

#include "base/status.h"

namespace sluice {

// kInvalidArgument: "name=value name=value" gives a name twice.
Status named_once(std::string_view line);

}  // namespace sluice
