// The shared library exports sluice_* and nothing else, and every function of the header.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
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
  const std::regex declaration(R"(SLUICE_API[^;(]*?(sluice_\w+)\()");
  std::set<std::string> out;
  for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it)
    out.insert((*it)[1]);
  return out;
}

TEST(CapiExports, AreTheHeadersFunctionsAndNothingElse) {
  const std::set<std::string> names = exported();
  EXPECT_GT(names.size(), 20u);
  EXPECT_EQ(names, declared());
}

}  // namespace
}  // namespace sluice::test
