// ./dev from another directory: paths are those of the caller.
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

}  // namespace

// The script in a tree of its own, where building does nothing and the command says where it runs.
TEST(Dev, PathsOfRunAndSluiceAreThoseOfTheCaller) {
  const fs::path top = fs::path(testing::TempDir()) / ("sluice_dev_" + std::to_string(getpid()));
  fs::remove_all(top);
  fs::create_directories(top / "elsewhere/mymodel");
  fs::create_directories(top / "tree/tools");
  fs::copy_file(fs::path(SLUICE_SOURCE_DIR) / "dev", top / "tree/dev");
  write_script(top / "tree/build/cpu/apps/sluice", "ls -d \"$2\" && shift 2 && echo \"$@\"");
  write_script(top / "bin/dpkg-query", "echo install ok installed");
  for (const char* tool : {"cmake", "python3"}) write_script(top / "bin" / tool, "exit 0");
  const std::string go = "cd \"$1/elsewhere\" && CUDACXX=nvcc PATH=\"$1/bin:$PATH\" ../tree/dev ";
  for (const char* words : {"run ./mymodel -q", "sluice run ./mymodel -q"}) {
    const Outcome o = run_process({"sh", "-c", go + words, "sh", top.string()});
    EXPECT_EQ(o.status, 0) << words << ": " << o.err;
    EXPECT_EQ(o.out, "./mymodel\n-q\n") << words;
  }
  fs::remove_all(top);
}

}  // namespace sluice::test
