// The shared library exports exactly the functions of its headers, all named sluice_*.
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
  std::string text;
  for (const char* name : {"sluice.h", "group.h"}) {
    std::ifstream file(std::string(SLUICE_SOURCE_DIR) + "/include/sluice/" + name);
    text.append(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
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

// The shared libraries that a program needs, named without their versions.
std::set<std::string> libraries_of(const char* program) {
  const Outcome dump = run_process({"readelf", "-d", program});
  EXPECT_EQ(dump.status, 0) << dump.err;
  std::set<std::string> out;
  std::istringstream lines(dump.out);
  for (std::string line; std::getline(lines, line);) {
    const size_t name = line.find('[');
    if (line.find("(NEEDED)") == std::string::npos || name == std::string::npos) continue;
    out.insert(line.substr(name + 1, line.find(".so", name) - name - 1));
  }
  return out;
}

// Neither the command nor the library links graphics or window libraries, because a server has none. Only the
// command links line editing.
TEST(Links, AreTheFewThatTheyNeed) {
  const std::set<std::string> known = {
      "libc",    "libm",     "libgcc_s", "libstdc++", "ld-linux-x86-64", "libhwy",     "libpcre2-8",
      "libasan", "libubsan", "libtsan",  "libdl",     "librt",           "libpthread", "ld-linux-aarch64"};
  for (const char* program : {SLUICE_COMMAND, SLUICE_LIBRARY}) {
    const std::set<std::string> needed = libraries_of(program);
    EXPECT_TRUE(needed.contains("libc")) << "no libraries were found for " << program;
    for (const std::string& name : needed) {
      const bool edits = program == std::string(SLUICE_COMMAND) && name == "libedit";
      EXPECT_TRUE(edits || known.contains(name)) << program << " links " << name;
    }
  }
}

}  // namespace
}  // namespace sluice::test
