// ./dev run from another directory: relative paths are relative to the caller's directory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "harness/process.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

void write_script(const fs::path& path, const std::string& body) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
  fs::permissions(path, fs::perms::owner_all);
}

// A copy of the script in its own tree, where a build does nothing and a stand-in for `sluice` prints its
// working directory.
class Dev : public ::testing::Test {
 protected:
  Dev() {
    fs::remove_all(top_);
    fs::create_directories(top_ / "elsewhere/mymodel");
    fs::create_directories(top_ / "tree/tools");
    fs::copy_file(fs::path(SLUICE_SOURCE_DIR) / "dev", top_ / "tree/dev");
    write_script(top_ / "tree/build/cpu/apps/sluice", "ls -d \"$2\" && shift 2 && echo \"$@\"");
    write_script(top_ / "bin/dpkg-query", "echo install ok installed");
    write_script(top_ / "bin/python3", "exit 0");
    write_script(top_ / "bin/cmake", "echo \"$@\" > \"" + configured().string() + "\"");
  }
  ~Dev() override { fs::remove_all(top_); }
  Outcome run(const std::string& words) const {
    const std::string go = "cd \"$1/elsewhere\" && CUDACXX=nvcc PATH=\"$1/bin:$PATH\" ../tree/dev ";
    return run_process({"sh", "-c", go + words, "sh", top_.string()});
  }
  fs::path configured() const { return top_ / "configured"; }  // contains cmake's arguments

 private:
  const fs::path top_ = fs::path(testing::TempDir()) / ("sluice_dev_" + std::to_string(getpid()));
};

}  // namespace

TEST_F(Dev, PathsOfRunAndSluiceAreThoseOfTheCaller) {
  for (const char* words : {"run ./mymodel -q", "sluice run ./mymodel -q"}) {
    const Outcome o = run(words);
    EXPECT_EQ(o.status, 0) << words << ": " << o.err;
    EXPECT_EQ(o.out, "./mymodel\n-q\n") << words;
  }
}

}  // namespace sluice::test
