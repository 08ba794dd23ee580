// Reads a count from an environment variable, which can make a test longer.
#pragma once
#include <cstdlib>

namespace sluice::test {

inline int count_from(const char* variable, int usual) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : usual;
}

}  // namespace sluice::test
