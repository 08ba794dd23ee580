// What every subcommand ends with: an exit status, and errors as one message on stderr.
#pragma once
#include <cstdint>
#include <string_view>

namespace sluice::apps {

constexpr int kExitOk = 0;
constexpr int kExitNo = 1;        // the question was understood, and the answer is no
constexpr int kExitWrongUse = 2;  // unknown names, bad values, files and devices that fail

enum class Format : uint8_t { kText, kJson };

// Prints "sluice: <message>" to stderr; returns kExitWrongUse.
int wrong_use(std::string_view message);

}  // namespace sluice::apps
