#include "weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace sluice {
namespace {

Status io(const std::string& path, const std::string& what) { return {Code::kIo, path + ": " + what}; }

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // Non-blocking, because opening a pipe must not wait for a writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return io(path, std::string("cannot be opened: ") + std::strerror(errno));
  MappedFile out(path, file);
  struct stat status {};
  if (::fstat(file, &status) != 0)
    return io(path, std::string("cannot be examined: ") + std::strerror(errno));
  if (!S_ISREG(status.st_mode))
    return io(path, std::string("wanted a regular file, found ") +
                        (S_ISDIR(status.st_mode) ? "a directory" : "a device, pipe or socket"));
  if (status.st_size == 0) return io(path, "wanted a file with content, found an empty one");
  void* data = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) return io(path, std::string("cannot be mapped: ") + std::strerror(errno));
  out.data_ = static_cast<const std::byte*>(data);
  out.bytes_ = status.st_size;
  return out;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(bytes_));
  if (file_ >= 0) ::close(file_);
}

Status MappedFile::check_whole() const {
  struct stat status {};
  if (::fstat(file_, &status) != 0)
    return io(path_, std::string("cannot be examined: ") + std::strerror(errno));
  if (status.st_size >= bytes_) return {};
  return io(path_, "wanted " + std::to_string(bytes_) + " bytes, as when it was opened, found " +
                       std::to_string(status.st_size));
}

void MappedFile::advise(const std::byte* begin, int64_t bytes, int advice) const {
  if (begin < data_ || begin > data_ + bytes_ || bytes <= 0) return;
  const auto page = static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  const int64_t first = (begin - data_) / page * page;
  const int64_t last = std::min(begin - data_ + bytes, bytes_);
  ::madvise(const_cast<std::byte*>(data_) + first, static_cast<size_t>(last - first), advice);
}

void MappedFile::prefetch(const std::byte* begin, int64_t bytes) const {
  advise(begin, bytes, MADV_WILLNEED);
}
void MappedFile::release(const std::byte* begin, int64_t bytes) const { advise(begin, bytes, MADV_DONTNEED); }

}  // namespace sluice
