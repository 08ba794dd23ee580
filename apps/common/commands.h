// Exit statuses of the subcommands, and the form of their errors: one message on stderr.
#pragma once
#include <cstdint>
#include <string_view>

namespace sluice::apps {

constexpr int kExitOk = 0;
// the command ran and found a problem, such as an unsupported kernel or a failed check
constexpr int kExitNo = 1;
constexpr int kExitWrongUse = 2;  // the arguments are wrong, or a file or device failed

enum class Format : uint8_t { kText, kJson };

// Prints "sluice: <message>" to stderr; returns kExitWrongUse.
int wrong_use(std::string_view message);

}  // namespace sluice::apps
