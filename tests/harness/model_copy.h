// A copy of the shipped model in its own directory, for tests that damage the copy.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "base/json.h"

namespace sluice::test {

namespace fs = std::filesystem;

inline const fs::path kShipped = fs::path(SLUICE_SOURCE_DIR) / "models/sluice-16e-tiny";

inline std::string text_of(const fs::path& path) { return read_file(path.string(), 1 << 30).value(); }

// Unchanged files are links to the shipped files.
class ModelCopy {
 public:
  ModelCopy() : path_(fs::path(testing::TempDir()) / ("sluice_copy_" + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
    for (const auto& file : fs::directory_iterator(kShipped))
      fs::create_symlink(file.path(), path_ / file.path().filename());
  }
  ~ModelCopy() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }
  void write(const std::string& name, const std::string& text) {
    fs::remove(path_ / name);
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  void remove(const std::string& name) { fs::remove(path_ / name); }
  void change_config(const std::function<void(Json&)>& change) {
    Json config = parse_json(text_of(kShipped / "config.json"), "config").value();
    change(config);
    write("config.json", config.dump());
  }
  // Writes the weights file with `change` applied to its bytes.
  void change_weights(const std::function<void(std::string&)>& change) {
    std::string bytes = text_of(kShipped / "model.safetensors");
    change(bytes);
    write("model.safetensors", bytes);
  }

 private:
  fs::path path_;
};

// Offset of a tensor's bytes in the file.
inline size_t offset_of(const std::string& file, const std::string& tensor) {
  uint64_t header = 0;
  std::memcpy(&header, file.data(), 8);
  const Json json = Json::parse(file.substr(8, header));
  return 8 + header + json.at(tensor).at("data_offsets").at(0).get<size_t>();
}

}  // namespace sluice::test
