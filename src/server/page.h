// The page at /: a conversation in a browser. Its files are inside the program.
#pragma once
#include <string_view>

#include "server/http/http.h"

namespace sluice {

// "/", "/page.css" or "/page.js". The page may load nothing from elsewhere and runs no script but its own, whatever a model says.
HttpResponse page_response(std::string_view path);

}  // namespace sluice
