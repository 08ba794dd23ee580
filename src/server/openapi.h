// Describes the API for tools that read OpenAPI.
#pragma once
#include <string>

#include "server/requests/request.h"

namespace sluice {

// Returns an OpenAPI 3.1 document of all endpoints. Its numeric limits come from `limits`, which the server enforces.
std::string openapi_json(const ApiLimits& limits);

}  // namespace sluice
