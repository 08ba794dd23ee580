// Runs the built command to its end.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "harness/process.h"

namespace sluice::test {

inline Outcome sluice(std::vector<std::string> words) {
  words.insert(words.begin(), SLUICE_COMMAND);
  return run_process(words);
}

// Runs a wrong command: expects status 2, nothing on stdout and one line on stderr, and returns the line.
inline std::string complaint(const std::vector<std::string>& words) {
  const Outcome o = sluice(words);
  EXPECT_EQ(o.status, 2) << o.err << o.out;
  EXPECT_EQ(o.out, "");
  EXPECT_EQ(o.err.substr(0, 8), "sluice: ") << o.err;
  EXPECT_EQ(o.err.find('\n'), o.err.size() - 1) << o.err;
  return o.err;
}
inline void expect_refusal(const std::vector<std::string>& words, const std::vector<std::string>& parts) {
  const std::string err = complaint(words);
  for (const std::string& part : parts)
    EXPECT_NE(err.find(part), std::string::npos) << part << "\nin " << err;
}

}  // namespace sluice::test
