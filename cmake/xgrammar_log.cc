// What xgrammar leaves to its user (XGRAMMAR_LOG_CUSTOMIZE): its errors are what was wrong and no place in its files, its
// warnings are kept, and nothing is printed. src/grammar/xgrammar.cc catches them.
#include <stdexcept>
#include <string>

namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

std::string& first_warning() {
  thread_local std::string warning;
  return warning;
}

void LogMessageImpl(const std::string&, int, int, const std::string& message) {
  if (first_warning().empty()) first_warning() = message;
}

}  // namespace xgrammar
