// Runs a program to its end and keeps what it said.
#pragma once
#include <string>
#include <vector>

namespace sluice::test {

struct Outcome {
  int status = -1;  // exit status; -1: it could not be started, or a signal ended it
  std::string out, err;
};

// words[0] is looked up in PATH. Standard input is empty.
Outcome run_process(const std::vector<std::string>& words);

}  // namespace sluice::test
