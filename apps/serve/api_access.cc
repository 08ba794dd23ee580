#include "apps/serve/api_access.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "apps/serve/server_text.h"

namespace sluice::apps {
namespace {

constexpr size_t kNameShown = 200;  // bytes of a foreign name in a message

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Without a port, brackets and the root's dot, and in small letters.
std::string host_name(std::string_view host) {
  if (host.starts_with('[')) {
    host = host.substr(1, host.find(']') - 1);
  } else if (const size_t colon = host.find(':'); host.find(':', colon + 1) == host.npos) {
    host = host.substr(0, colon);
  }
  if (host.ends_with('.')) host.remove_suffix(1);
  return lower(std::string(host));
}

bool is_address(const std::string& host) {
  in6_addr bytes;  // the larger one
  return inet_pton(AF_INET, host.c_str(), &bytes) == 1 ||
         inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &bytes) == 1;
}

}  // namespace

Result<std::vector<std::string>> read_names(std::string_view text) {
  std::vector<std::string> names;
  std::string_view rest = text;
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  for (bool more = !rest.empty() || text.empty(); more;) {
    const size_t end = rest.find(',');
    std::string_view name = rest.substr(0, end);
    more = end != rest.npos;
    if (more) rest.remove_prefix(end + 1);
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
    if (name.size() >= 2 && name.starts_with('"') && name.ends_with('"'))
      name = name.substr(1, name.size() - 2);
    if (name.empty() || name.find_first_of(" \t\r\n\"'") != name.npos)
      return invalid("wanted names with commas between them, or a JSON list of them, found '" +
                     std::string(text) + "'");
    names.emplace_back(name);
  }
  return names;
}

Access::Access(AccessOptions options) : options_(std::move(options)) {
  for (std::string& host : options_.allowed_hosts) host = host_name(host);
  for (std::string& origin : options_.allowed_origins) {
    origin = lower(std::move(origin));
    if (origin.ends_with('/')) origin.pop_back();
  }
}

bool Access::authorized(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return true;
  constexpr std::string_view kScheme = "bearer ";
  const std::string& header = request.authorization;
  if (header.size() < kScheme.size() || lower(header.substr(0, kScheme.size())) != kScheme) return false;
  bool known = false;  // all are compared, whichever it is
  for (const std::string& key : options_.api_keys)
    known |= same_secret(key, std::string_view(header).substr(kScheme.size()));
  return known;
}

std::optional<ApiError> Access::check_host(const HttpRequest& request) const {
  if (!options_.api_keys.empty() || request.host.empty() || has(options_.allowed_hosts, "*")) return {};
  const std::string host = host_name(request.host);
  // Nobody else's page has a name without a dot: it is found in this network alone.
  const bool local = host.find('.') == host.npos || host.ends_with(".localhost");
  if (local || is_address(host) || host == host_name(options_.host) || has(options_.allowed_hosts, host))
    return {};
  return ApiError{
      .status = 403,
      .message = "Host: wanted an address, a name without a dot or one of --allowed-hosts, found '" +
                 host.substr(0, kNameShown) + "', and the server asks for no key (--api-key)",
      .type = "permission_error",
      .code = "host_not_allowed"};
}

bool Access::allows_origin(const std::string& origin) const {
  return !origin.empty() &&
         (has(options_.allowed_origins, "*") || has(options_.allowed_origins, lower(origin)));
}

HttpHeaders Access::headers_for(const HttpRequest& request) const {
  if (options_.allowed_origins.empty()) return {};
  const bool any = has(options_.allowed_origins, "*");
  HttpHeaders out;
  if (!any) out.emplace_back("Vary", "Origin");  // for caches between
  if (!allows_origin(request.origin)) return out;
  out.emplace_back("Access-Control-Allow-Origin", any ? "*" : request.origin);
  out.emplace_back("Access-Control-Expose-Headers", "x-request-id, Retry-After");
  return out;
}

std::optional<HttpResponse> Access::preflight(const HttpRequest& request) const {
  if (options_.allowed_origins.empty() || request.method != "OPTIONS" || request.origin.empty() ||
      request.asked_method.empty())
    return {};
  HttpResponse out{.content_type = "text/plain"};  // whose headers say whether the page may go on
  if (!allows_origin(request.origin)) return out;
  out.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE");
  if (!request.asked_headers.empty())
    out.headers.emplace_back("Access-Control-Allow-Headers", request.asked_headers);
  out.headers.emplace_back("Access-Control-Max-Age", "600");
  return out;
}

}  // namespace sluice::apps
