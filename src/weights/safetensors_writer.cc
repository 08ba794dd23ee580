#include "weights/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>

#include "base/json.h"

namespace sluice {
namespace {

constexpr size_t kDataAlignment = 8;  // offset of the first tensor; the header is padded with spaces

Status check(const std::vector<TensorToWrite>& tensors, int64_t* total) {
  std::set<std::string_view> names;
  *total = 0;
  for (const TensorToWrite& t : tensors) {
    if (t.name == "__metadata__") return invalid("safetensors: wanted a tensor's name, found '__metadata__'");
    if (!names.insert(t.name).second)
      return invalid("safetensors: wanted each tensor once, found '" + t.name + "' twice");
    if (t.shape.size() > static_cast<size_t>(kStoredRankMax))
      return invalid("safetensors: " + t.name + ": wanted at most 8 dimensions, found " +
                     std::to_string(t.shape.size()));
    for (int64_t size : t.shape)
      if (size < 0)
        return invalid("safetensors: " + t.name + ": wanted sizes of at least 0, found " +
                       std::to_string(size));
    const auto bytes = stored_bytes(t.type, t.shape);
    if (!bytes || __builtin_add_overflow(*total, *bytes, total))
      return invalid("safetensors: " + t.name +
                     ": wanted a whole number of bytes, of all tensors below 2^63, found " +
                     stored_text(t.type, t.shape));
  }
  return {};
}

// The length field and the padded JSON.
Result<std::string> header_of(const std::vector<TensorToWrite>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  Json root = Json::object();
  if (!metadata.empty()) root["__metadata__"] = metadata;
  int64_t at = 0;
  for (const TensorToWrite& t : tensors) {
    const int64_t end = at + stored_bytes(t.type, t.shape).value_or(0);
    root[t.name] = {{"dtype", text(t.type)}, {"shape", t.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string json;
  try {
    json = root.dump();
  } catch (const Json::exception&) {  // dump() throws for invalid UTF-8
    return invalid("safetensors: wanted names and metadata in UTF-8, found other bytes");
  }
  json.resize((json.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  if (json.size() > static_cast<size_t>(kHeaderBytesMax))
    return invalid("safetensors: wanted a header of at most " + std::to_string(kHeaderBytesMax) +
                   " bytes, found " + std::to_string(json.size()));
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(json.size() >> (8 * i) & 255);
  return out + json;
}

// A file name that no other writer uses, in this process or another.
std::string temporary_name(const std::string& path) {
  static std::atomic<uint64_t> next{0};
  return path + ".partial-" + std::to_string(::getpid()) + "-" + std::to_string(next++);
}

}  // namespace

Result<std::string> safetensors_header(const std::vector<TensorToWrite>& tensors,
                                       const std::map<std::string, std::string>& metadata) {
  int64_t total = 0;
  SLUICE_TRY(check(tensors, &total));
  return header_of(tensors, metadata);
}

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(
    const std::string& path, std::vector<TensorToWrite> tensors,
    const std::map<std::string, std::string>& metadata) {
  int64_t total = 0;
  SLUICE_TRY(check(tensors, &total));
  const auto header = header_of(tensors, metadata);
  if (!header.ok()) return header.status();
  const std::string temporary = temporary_name(path);
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return Status{Code::kIo, path + ": cannot be created: " + std::strerror(errno)};
  std::unique_ptr<SafetensorsWriter> out(
      new SafetensorsWriter(path, temporary, file, std::move(tensors), total));
  out->header_bytes_ = static_cast<int64_t>(header.value().size());
  // Reserves the space now, so that a full disk does not stop hours of writing. On file systems that cannot
  // reserve space, each write may still fail.
  if (::fallocate(file, 0, 0, out->header_bytes_ + total) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
    return out->trouble("space cannot be reserved", errno);
  SLUICE_TRY(out->put(header.value().data(), header.value().size()));
  return out;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

Status SafetensorsWriter::trouble(const std::string& doing, int error) const {
  return {Code::kIo, path_ + ": " + doing + ": " + std::strerror(error) + "; wanted " +
                         std::to_string(header_bytes_ + bytes_) + " bytes, wrote " +
                         std::to_string(written_) + " of the tensors"};
}

Status SafetensorsWriter::put(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(file_, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return trouble("cannot be written", errno);
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return {};
}

Status SafetensorsWriter::write(std::span<const std::byte> piece) {
  if (file_ < 0)
    return invalid(path_ + ": wanted nothing after finish(), found " + std::to_string(piece.size()) +
                   " bytes");
  if (static_cast<int64_t>(piece.size()) > bytes_ - written_)
    return invalid(path_ + ": wanted at most the " + std::to_string(bytes_ - written_) +
                   " bytes that the tensors still need, found " + std::to_string(piece.size()));
  SLUICE_TRY(put(piece.data(), piece.size()));
  written_ += static_cast<int64_t>(piece.size());
  return {};
}

Status SafetensorsWriter::finish() {
  if (file_ < 0) return invalid(path_ + ": finish() was called twice");
  if (written_ != bytes_) {
    int64_t at = 0;
    size_t i = 0;
    while (at + stored_bytes(tensors_[i].type, tensors_[i].shape).value_or(0) <= written_)
      at += stored_bytes(tensors_[i].type, tensors_[i].shape).value_or(0), ++i;
    return invalid(path_ + ": " + tensors_[i].name + ": wanted " +
                   stored_text(tensors_[i].type, tensors_[i].shape) + ", found only " +
                   std::to_string(written_ - at) + " bytes of it");
  }
  const int file = file_;
  file_ = -1;
  if (::close(file) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    return trouble("cannot be closed", error);
  }
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    return trouble("cannot be renamed into place", error);
  }
  return {};
}

}  // namespace sluice
