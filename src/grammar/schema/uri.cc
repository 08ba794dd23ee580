#include "grammar/schema/uri.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <vector>

namespace sluice {
namespace {

// RFC 3986, appendix B. A missing part differs from an empty one: "//" has an empty authority, and "?" an empty query.
struct Uri {
  std::optional<std::string> scheme = {}, authority = {}, query = {};
  std::string path = {};
};

std::string in_lower_case(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

bool is_scheme(const std::string& text) {
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '+' || c == '-' || c == '.';
         });
}

Uri parts_of_uri(std::string text) {
  Uri out;
  if (const size_t query = text.find('?'); query != std::string::npos) {
    out.query = text.substr(query + 1);
    text.resize(query);
  }
  if (const size_t colon = text.find(':'); colon != std::string::npos && is_scheme(text.substr(0, colon))) {
    out.scheme = in_lower_case(text.substr(0, colon));
    text.erase(0, colon + 1);
  }
  if (text.starts_with("//")) {
    const size_t end = std::min(text.find('/', 2), text.size());
    const std::string authority = text.substr(2, end - 2);
    const size_t at = authority.rfind('@');
    const size_t host = at == std::string::npos ? 0 : at + 1;
    out.authority = authority.substr(0, host) + in_lower_case(authority.substr(host));
    text.erase(0, end);
  }
  out.path = std::move(text);
  return out;
}

std::string without_dot_segments(const std::string& path) {
  const bool absolute = path.starts_with('/');
  std::vector<std::string> kept;
  for (size_t at = absolute ? 1 : 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string segment = path.substr(at, end - at);
    const bool dots = segment == "." || segment == "..";
    if (segment == ".." && !kept.empty()) kept.pop_back();
    if (!dots) kept.push_back(segment);
    if (dots && end == path.size()) kept.emplace_back();  // "a/." is "a/"
    at = end + 1;
  }
  std::string out = absolute ? "/" : "";
  for (size_t i = 0; i < kept.size(); ++i) out += (i > 0 ? "/" : "") + kept[i];
  return out;
}

std::string merged(const Uri& base, const std::string& path) {
  if (base.authority && base.path.empty()) return "/" + path;
  return base.path.substr(0, base.path.rfind('/') + 1) + path;
}

}  // namespace

std::string resolved_uri(const std::string& base, const std::string& reference) {
  const Uri around = parts_of_uri(base);
  Uri out = parts_of_uri(reference);
  if (!out.scheme && !out.authority) {
    if (out.path.empty()) {
      out.path = around.path;
      if (!out.query) out.query = around.query;
    } else if (!out.path.starts_with('/')) {
      out.path = merged(around, out.path);
    }
    out.authority = around.authority;
  }
  if (!out.scheme) out.scheme = around.scheme;
  out.path = without_dot_segments(out.path);
  return (out.scheme ? *out.scheme + ":" : "") + (out.authority ? "//" + *out.authority : "") + out.path +
         (out.query ? "?" + *out.query : "");
}

}  // namespace sluice
