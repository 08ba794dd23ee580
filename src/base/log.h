// The library never prints. It passes lines to the caller's callback.
#pragma once
#include <cstdint>
#include <string>

namespace sluice {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

// The caller's callback. By default lines are dropped.
struct Log {
  void (*sink)(void* context, LogLevel level, const char* line) = nullptr;
  void* context = nullptr;
  void operator()(LogLevel level, const std::string& line) const {
    if (sink) sink(context, level, line.c_str());
  }
};

}  // namespace sluice
