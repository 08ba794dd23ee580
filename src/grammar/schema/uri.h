// URI references of schemas, as RFC 3986 resolves them.
#pragma once
#include <string>

namespace sluice {

// What `reference` names where `base` is the URI of the schema around it; both without a fragment. Scheme and host are in lower case.
std::string resolved_uri(const std::string& base, const std::string& reference);

}  // namespace sluice
