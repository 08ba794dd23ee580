// Files that a command line names, and standard input, as texts.
#pragma once
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "base/status.h"

namespace sluice::apps {

constexpr const char* kStandardInput = "standard input";
constexpr int64_t kInputBytesMax = 16 << 20;  // of a text or a line: no model's context holds as much

// All that is left of it, without the end of its last line. kIo: it cannot be read; kCorrupt: there is more than kInputBytesMax. Both
// name `place`.
Result<std::string> text_of(std::FILE* in, const std::string& place);
// Likewise of a file. kIo also: there is none, and `what` was wanted in it.
Result<std::string> file_text(const std::string& path, const std::string& what);
// The next line, without its end ("\n" or "\r\n"); none: there are no more. Errors as of text_of.
Result<std::optional<std::string>> next_line(std::FILE* in, const std::string& place);

}  // namespace sluice::apps
