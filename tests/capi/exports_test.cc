// The shared library exports sluice_* and nothing else, and every function of the header.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "harness/process.h"

namespace sluice::test {
namespace {

std::set<std::string> exported() {
  const Outcome nm = run_process({"nm", "-D", "--defined-only", SLUICE_LIBRARY});
  EXPECT_EQ(nm.status, 0) << nm.err;
  std::set<std::string> out;
  std::istringstream lines(nm.out);
  for (std::string line; std::getline(lines, line);) out.insert(line.substr(line.rfind(' ') + 1));
  return out;
}

std::set<std::string> declared() {
  std::ifstream file(std::string(SLUICE_SOURCE_DIR) + "/include/sluice/sluice.h");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::set<std::string> out;
  for (size_t at = text.find("\nSLUICE_API "); at != std::string::npos;
       at = text.find("\nSLUICE_API ", at + 1)) {
    const size_t end = text.find('(', at), begin = text.find_last_of(" *\n", end) + 1;
    out.insert(text.substr(begin, end - begin));
  }
  return out;
}

TEST(CapiExports, AreTheHeadersFunctionsAndNothingElse) {
  const std::set<std::string> names = exported();
  EXPECT_GT(names.size(), 20u);
  EXPECT_EQ(names, declared());
}

}  // namespace
}  // namespace sluice::test
