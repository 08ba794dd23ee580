// Checks the libraries of broken kernels in this program's folder, if there are any: each must replace a
// kernel of the CUDA backend. Needs no GPU.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "backends/cuda/device.h"
#include "gpu/mutant.h"

namespace sluice::test {

TEST(Mutants, EveryLibraryHasAKernelOfTheBackend) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "mutants";
  std::ifstream list(folder / "list");
  if (!list) GTEST_SKIP() << folder << ": no such folder; ./dev gpu --mutations builds it";
  int loaded = 0;
  for (std::string line; std::getline(list, line); ++loaded) {
    std::istringstream words(line);
    std::string name, op;
    words >> name >> op;
    const auto mutant = Mutant::load(folder / (name + ".so"));
    ASSERT_TRUE(mutant.ok()) << mutant.status().message;
    EXPECT_EQ(mutant.value().op(), op) << name;
    bool found = false;
    (void)mutant.value().in_place(cuda::catalog(), &found);
    EXPECT_TRUE(found) << name;
  }
  EXPECT_GT(loaded, 0);
}

}  // namespace sluice::test
