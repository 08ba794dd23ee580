#include "server/api_access.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "server/server_text.h"

namespace sluice {
namespace {

constexpr size_t kNameShown = 200;  // bytes of a client's name in a message

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The host without port, brackets and trailing dot, in lower case.
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
  in6_addr bytes;  // large enough for IPv4 and IPv6 addresses
  return inet_pton(AF_INET, host.c_str(), &bytes) == 1 ||
         inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &bytes) == 1;
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Accepts for example "a.example", "10.0.0.1" and "[::1]".
bool is_host(const std::string& host) {
  if (is_address(host)) return true;
  const auto plain = [](char c) { return is_letter(c) || is_digit(c) || c == '.' || c == '-' || c == '_'; };
  return !host.empty() && std::all_of(host.begin(), host.end(), plain) && host.front() != '.' &&
         host.find("..") == host.npos;
}

// Whether `text` may follow a host: nothing, or ":" and a number.
bool is_port(std::string_view text) {
  return text.empty() || (text.size() > 1 && text[0] == ':' &&
                          std::all_of(text.begin() + 1, text.end(), [](char c) { return is_digit(c); }));
}

std::string_view port_of(std::string_view host) {
  const size_t from = host.starts_with('[') ? host.find(']') : 0;
  const size_t colon = host.find(':', std::min(from, host.size()));
  const bool bare_address = from == 0 && colon != host.npos && host.find(':', colon + 1) != host.npos;
  return colon == host.npos || bare_address ? std::string_view() : host.substr(colon);
}

// Accepts a host with or without a port, such as "a.example:80" and "[::1]:80".
bool is_host_and_port(std::string_view text) {
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    return end != text.npos && is_address(std::string(text.substr(1, end - 1))) &&
           is_port(text.substr(end + 1));
  }
  return is_host(host_name(text)) && is_port(port_of(text));
}

Status wrong_host(const std::string& name) {
  return invalid("wanted host names such as chat.example, or '*' alone for any, found '" + name + "'");
}

Status check_origin(std::string_view origin) {
  const auto wrong = [&](const std::string& why) {
    return invalid(
        "wanted origins such as https://chat.example or http://localhost:3000, or '*' alone for any, found "
        "'" +
        std::string(origin) + "'" + why);
  };
  if (origin == "*" || origin == "null") return {};  // browsers send "null" for local files
  const size_t end = std::min(origin.find("://"), origin.size());
  const std::string scheme = lower(std::string(origin.substr(0, end)));
  const auto plain = [](char c) { return is_letter(c) || is_digit(c) || c == '+' || c == '-' || c == '.'; };
  const bool is_scheme =
      !scheme.empty() && is_letter(scheme[0]) && std::all_of(scheme.begin(), scheme.end(), plain);
  if (!is_scheme || end == origin.size()) return wrong("");
  std::string_view host = origin.substr(end + 3);
  if (host.ends_with('/')) host.remove_suffix(1);
  const std::string_view port = port_of(host);
  if (!is_host_and_port(host)) return wrong("");
  if ((scheme == "http" && port == ":80") || (scheme == "https" && port == ":443"))
    return wrong("; browsers omit the default port");
  return {};
}

Status no_names(std::string_view text) {
  return invalid("wanted names separated by commas, or a JSON list of names, found '" + std::string(text) +
                 "'");
}

Result<std::vector<std::string>> read_names(std::string_view text) {
  std::vector<std::string> names;
  if (const auto list = parse_json(text, "list"); list.ok() && list.value().is_array()) {
    for (const Json& name : list.value()) {
      if (!name.is_string() || name == "") return no_names(text);
      names.push_back(name.get<std::string>());
    }
    if (names.empty()) return no_names(text);
    return names;
  }
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
    if (name.empty() || name.find_first_of(" \t\r\n\"'") != name.npos) return no_names(text);
    names.emplace_back(name);
  }
  return names;
}

}  // namespace

Result<std::vector<std::string>> read_hosts(std::string_view text) {
  auto names = read_names(text);
  if (!names.ok()) return names;
  for (const std::string& name : names.value())
    if (name != "*" && !is_host_and_port(name)) return wrong_host(name);
  return names;
}

Result<std::vector<std::string>> read_origins(std::string_view text) {
  auto names = read_names(text);
  if (!names.ok()) return names;
  for (const std::string& name : names.value()) SLUICE_TRY(check_origin(name));
  return names;
}

Access::Access(AccessOptions options, const SettingNames& names)
    : options_(std::move(options)), names_(names) {
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
  std::string_view given = std::string_view(header).substr(kScheme.size());
  // RFC 9110, 11.4: one or more blanks
  given.remove_prefix(std::min(given.find_first_not_of(' '), given.size()));
  bool known = false;  // the loop compares all keys, so that its time does not depend on which key matches
  for (const std::string& key : options_.api_keys) known |= same_secret(key, given);
  return known;
}

std::optional<ApiError> Access::check_host(const HttpRequest& request) const {
  if (request.host.empty()) return {};
  std::string_view named = request.host;
  if (named.ends_with(':') && !named.ends_with("::")) named.remove_suffix(1);  // the port may be empty
  // RFC 9112, 3.2: a Host header that names no host is an error, even if all hosts are allowed.
  if (!is_host_and_port(named))
    return ApiError{.status = 400,
                    .message = "Host: wanted a name or an address, with or without a port, found '" +
                               shortened(request.host) + "'"};
  if (!options_.api_keys.empty() || has(options_.allowed_hosts, "*")) return {};
  const std::string host = host_name(request.host);
  // Names without a dot and names below "localhost" resolve only locally, so no page from the internet can have such a name.
  const bool local = host.find('.') == host.npos || host.ends_with(".localhost");
  if (local || is_address(host) || host == host_name(options_.host) || has(options_.allowed_hosts, host))
    return {};
  return ApiError{.status = 403,
                  .message = std::string("Host: wanted an address, a name without a dot or one of ") +
                             names_.allowed_hosts + ", found '" + host.substr(0, kNameShown) + "'; or set " +
                             names_.api_keys + ", which lifts this restriction",
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
  if (!any) out.emplace_back("Vary", "Origin");  // tells caches that the answer depends on the Origin header
  if (!allows_origin(request.origin)) return out;
  out.emplace_back("Access-Control-Allow-Origin", any ? "*" : request.origin);
  out.emplace_back("Access-Control-Expose-Headers", "x-request-id, Retry-After");
  return out;
}

std::optional<HttpResponse> Access::preflight(const HttpRequest& request) const {
  if (options_.allowed_origins.empty() || request.method != "OPTIONS" || request.origin.empty() ||
      request.asked_method.empty())
    return {};
  // The headers tell the browser whether the page may send its request.
  HttpResponse out{.content_type = "text/plain"};
  if (!allows_origin(request.origin)) return out;
  out.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE");
  if (!request.asked_headers.empty())
    out.headers.emplace_back("Access-Control-Allow-Headers", request.asked_headers);
  out.headers.emplace_back("Access-Control-Max-Age", "600");
  return out;
}

}  // namespace sluice
