// Lets an environment variable make a test run longer.
#pragma once
#include <cstdlib>

namespace sluice::test {

inline int count_from(const char* variable, int usual) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : usual;
}

}  // namespace sluice::test
