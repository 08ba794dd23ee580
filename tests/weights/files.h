// Checkpoints for tests: written, damaged, deleted.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "weights/safetensors_writer.h"

namespace sluice::test {

// A new directory for each test, which is removed with its contents.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      out.push_back(entry.path().filename().string());
    return out;
  }

 private:
  std::string path_;
};

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// A safetensors file with this header, unchecked, and `data_bytes` bytes of data.
inline std::string with_header(const std::string& json, size_t data_bytes) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(json.size() >> (8 * i) & 255);
  out += json;
  for (size_t i = 0; i < data_bytes; ++i) out += static_cast<char>(i);
  return out;
}

// A tensor's description and its bytes.
struct StoredTensor {
  TensorToWrite what;
  std::vector<std::byte> bytes;
};
inline void write_tensors(const std::string& path, const std::vector<StoredTensor>& tensors) {
  std::vector<TensorToWrite> what;
  for (const StoredTensor& t : tensors) what.push_back(t.what);
  auto writer = SafetensorsWriter::create(path, what);
  ASSERT_TRUE(writer.ok()) << writer.status().message;
  for (const StoredTensor& t : tensors) ASSERT_TRUE(writer.value()->write(t.bytes).ok()) << t.what.name;
  const Status finished = writer.value()->finish();
  ASSERT_TRUE(finished.ok()) << finished.message;
}

}  // namespace sluice::test
