// A line of fields from a user: see fields.h.
#pragma once
#include <string_view>

#include "base/status.h"

namespace sluice {

// kInvalidArgument: a name in "name=value name=value" stands there twice.
Status named_once(std::string_view line);

}  // namespace sluice
