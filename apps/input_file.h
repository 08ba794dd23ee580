// Files that a command line names, as texts.
#pragma once
#include <istream>
#include <string>

#include "base/status.h"

namespace sluice::apps {

// All that is left of it, without the newline at its end.
std::string text_of(std::istream& in);
// Likewise. kIo: names the file, and `what` was wanted in it.
Result<std::string> file_text(const std::string& path, const std::string& what);

}  // namespace sluice::apps
