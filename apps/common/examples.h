// What the help of each subcommand ends with.
#pragma once
#include <string>
#include <string_view>

namespace sluice::apps {

// "Examples:", and lines that can be pasted, with `program` as it was called. Empty for what is no subcommand.
std::string examples_of(std::string_view command, std::string_view program);

}  // namespace sluice::apps
