// The examples at the end of each subcommand's help.
#pragma once
#include <string>
#include <string_view>

namespace sluice::apps {

// The text "Examples:" with command lines that call `program`. Empty if `command` is not a subcommand.
std::string examples_of(std::string_view command, std::string_view program);

}  // namespace sluice::apps
