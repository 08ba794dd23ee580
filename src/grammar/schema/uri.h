// URI references of schemas, as RFC 3986 resolves them.
#pragma once
#include <string>

namespace sluice {

// Resolves `reference` against `base`, the URI of the enclosing schema; neither has a fragment. Scheme and host of the result are in
// lower case.
std::string resolved_uri(const std::string& base, const std::string& reference);

}  // namespace sluice
