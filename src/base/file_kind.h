// Recognizes files that are often given by mistake, for error messages.
#pragma once
#include <string_view>

namespace sluice {

// Describes a file by its first bytes, as a phrase that continues "found "; empty if the kind is unknown.
std::string_view file_kind(std::string_view begin);

}  // namespace sluice
