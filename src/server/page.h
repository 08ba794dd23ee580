// The chat page at /. Its files are embedded in the program.
#pragma once
#include <string_view>

#include "server/http/http.h"

namespace sluice {

// `path` is "/", "/page.css" or "/page.js". Whatever text a model generates, the headers forbid the page to load anything from other
// origins and to run other scripts.
HttpResponse page_response(std::string_view path);

}  // namespace sluice
