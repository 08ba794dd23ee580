// Locates the files of tests/data.
#pragma once
#include <filesystem>
#include <string>

namespace sluice::test {

// In the folder `data` of the program's folder, where ./dev gpu puts files for a machine without the sources;
// otherwise in the sources.
inline std::string test_data(const std::string& name) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  const auto carried = folder / "data" / name;
  return std::filesystem::exists(carried) ? carried.string()
                                          : std::string(SLUICE_SOURCE_DIR) + "/tests/data/" + name;
}

}  // namespace sluice::test
