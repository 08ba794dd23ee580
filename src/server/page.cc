#include "server/page.h"

namespace sluice {
namespace page {

// Generated from src/server/page by cmake/embed.cmake.
extern const std::string_view index_html, page_css, page_js;

}  // namespace page
namespace {

constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

}  // namespace

HttpResponse page_response(std::string_view path) {
  const char* type = "text/html; charset=utf-8";
  std::string_view text = page::index_html;
  if (path == "/page.css") type = "text/css; charset=utf-8", text = page::page_css;
  if (path == "/page.js") type = "text/javascript; charset=utf-8", text = page::page_js;
  return {.content_type = type,
          .body = std::string(text),
          .headers = {{"Cache-Control", "no-cache"},  // after an update of the server the page may differ
                      {"Content-Security-Policy", kPolicy},
                      {"Referrer-Policy", "no-referrer"},
                      {"X-Content-Type-Options", "nosniff"}}};
}

}  // namespace sluice
