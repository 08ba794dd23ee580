// What stands in a file's place by mistake, for errors.
#pragma once
#include <string_view>

namespace sluice {

// Of its first bytes, as an error goes on behind "found "; empty: nothing that is known.
std::string_view file_kind(std::string_view begin);

}  // namespace sluice
