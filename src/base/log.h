// The library never prints: it hands lines to the callback that was set.
#pragma once
#include <cstdint>
#include <string>

namespace sluice {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

// A caller's sink. The default one drops everything.
struct Log {
  void (*sink)(void* context, LogLevel level, const char* line) = nullptr;
  void* context = nullptr;
  void operator()(LogLevel level, const std::string& line) const {
    if (sink) sink(context, level, line.c_str());
  }
};

}  // namespace sluice
