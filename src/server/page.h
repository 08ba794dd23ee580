// The chat page at /. Its files are embedded in the program.
#pragma once
#include <string_view>

#include "server/http/http.h"

namespace sluice {

// `path` is "/", "/page.css" or "/page.js". The headers forbid the page to load anything from other origins and to run other scripts, no
// matter what text a model generates.
HttpResponse page_response(std::string_view path);

}  // namespace sluice
