// What the server answers, for tools that read OpenAPI.
#pragma once
#include <string>

#include "server/requests/request.h"

namespace sluice {

// An OpenAPI 3.1 document of all endpoints. The bounds of its numbers are those that the readers hold requests to.
std::string openapi_json(const ApiLimits& limits);

}  // namespace sluice
