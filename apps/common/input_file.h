// Reads texts from files and from standard input.
#pragma once
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "base/status.h"

namespace sluice::apps {

constexpr const char* kStandardInput = "standard input";
constexpr int64_t kInputBytesMax = 16 << 20;  // per text or line; more bytes than fit in any model's context

// Reads the rest of `in` without the final newline. kIo: reading failed. kCorrupt: the text exceeds kInputBytesMax. Messages name `place`.
Result<std::string> text_of(std::FILE* in, const std::string& place);
// Reads a whole file like text_of(). kIo includes a missing file; its message contains `what`, a description of the file's content.
Result<std::string> file_text(const std::string& path, const std::string& what);
// Reads the next line without its end ("\n" or "\r\n"); nullopt at the end of input. Errors are the same as in text_of().
Result<std::optional<std::string>> next_line(std::FILE* in, const std::string& place);

}  // namespace sluice::apps
