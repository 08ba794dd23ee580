// A file mapped into memory, to be read only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"

namespace sluice {

class MappedFile {
 public:
  // kIo names the file and the reason: it is not there, is no regular file, is empty, cannot be mapped. A file that is cut
  // short while it is read raises SIGBUS where its lost bytes are, as every mapping does: check_whole() first.
  static Result<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  // kIo names the file if it has become shorter since it was opened.
  Status check_whole() const;

  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(bytes_)}; }
  // Hints about the pages of a part of bytes(): soon to be read; not to be read again, so that they no longer count as this
  // process's memory. Reading them later is still right.
  void prefetch(const std::byte* begin, int64_t bytes) const;
  void release(const std::byte* begin, int64_t bytes) const;

 private:
  MappedFile(std::string path, int file) : path_(std::move(path)), file_(file) {}
  void advise(const std::byte* begin, int64_t bytes, int advice) const;
  std::string path_;
  int file_ = -1;
  const std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace sluice
