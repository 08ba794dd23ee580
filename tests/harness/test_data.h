// Where the files of tests/data are.
#pragma once
#include <filesystem>
#include <string>

namespace sluice::test {

// Beside the program, in the data of its folder, where ./dev gpu puts what a machine without the sources needs; or in the sources.
inline std::string test_data(const std::string& name) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  const auto carried = folder / "data" / name;
  return std::filesystem::exists(carried) ? carried.string()
                                          : std::string(SLUICE_SOURCE_DIR) + "/tests/data/" + name;
}

}  // namespace sluice::test
