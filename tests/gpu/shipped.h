// The model that ships with Sluice, and its draft head.
#pragma once
#include <filesystem>
#include <string>

namespace sluice::test {

// In the program's folder, where ./dev gpu puts them for `sluice run`, or in the source tree.
inline std::string shipped(const std::string& name) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  const auto carried = folder / "share/sluice/models" / name;
  return std::filesystem::exists(carried) ? carried.string()
                                          : std::string(SLUICE_SOURCE_DIR) + "/models/" + name;
}
inline std::string shipped_model() { return shipped("sluice-16e-tiny"); }
inline std::string shipped_head() { return shipped("sluice-16e-tiny-eagle3"); }

}  // namespace sluice::test
