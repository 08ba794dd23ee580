// The built command, run to its end.
#pragma once
#include "harness/process.h"

namespace sluice::test {

inline Outcome sluice(std::vector<std::string> words) {
  words.insert(words.begin(), SLUICE_COMMAND);
  return run_process(words);
}

}  // namespace sluice::test
