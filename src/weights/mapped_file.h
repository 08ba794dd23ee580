// A file mapped into memory for reading.
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
  // kIo names the file and the reason: missing, not a regular file, empty, or not mappable. If the file is
  // truncated later, reading the lost bytes raises SIGBUS, as with every mapping, so call check_whole()
  // first.
  static Result<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  // kIo names the file if it was truncated after it was opened.
  Status check_whole() const;

  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(bytes_)}; }
  // Page hints for a part of bytes(). prefetch() announces that the part will be read. release() says that it
  // was read, so its pages no longer count as this process's memory. Released pages may still be read.
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
