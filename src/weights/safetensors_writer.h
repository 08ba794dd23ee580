// Writes one safetensors file. Tensors are written in order and in pieces of any size, so no tensor needs to
// fit into memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "weights/safetensors.h"

namespace sluice {

struct TensorToWrite {
  std::string name;
  StoredType type = StoredType::kU8;
  std::vector<int64_t> shape;
};

// The beginning of a file with these tensors: the length field and the header. Errors as in
// SafetensorsWriter::create.
Result<std::string> safetensors_header(const std::vector<TensorToWrite>& tensors,
                                       const std::map<std::string, std::string>& metadata);

// Writes to a temporary name and renames at the end: readers never see an incomplete file, and a writer
// that is destroyed before finish() leaves no file. Does not sync to disk.
class SafetensorsWriter {
 public:
  // Reserves disk space and writes the header. kInvalidArgument names a tensor that cannot be written: a
  // duplicate name or "__metadata__", more than 8 dimensions, or a size that is not a whole number of bytes.
  // kIo names the file and the reason, and on a full disk the bytes needed.
  static Result<std::unique_ptr<SafetensorsWriter>> create(
      const std::string& path, std::vector<TensorToWrite> tensors,
      const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  int64_t bytes() const { return bytes_; }            // sum over all tensors
  int64_t bytes_written() const { return written_; }  // bytes of tensors written so far
  // Writes the next bytes of the tensors, in the order given to create(); a piece may span several tensors.
  // kInvalidArgument: more bytes than the tensors have.
  Status write(std::span<const std::byte> piece);
  // Completes the file; write() must not be called afterwards. kInvalidArgument names the first tensor whose
  // bytes are missing.
  Status finish();

 private:
  SafetensorsWriter(std::string path, std::string temporary, int file, std::vector<TensorToWrite> tensors,
                    int64_t bytes)
      : path_(std::move(path)),
        temporary_(std::move(temporary)),
        file_(file),
        tensors_(std::move(tensors)),
        bytes_(bytes) {}
  Status put(const void* data, size_t bytes);
  Status trouble(const std::string& doing, int error) const;

  std::string path_, temporary_;
  int file_;  // -1 once finished
  std::vector<TensorToWrite> tensors_;
  int64_t bytes_, header_bytes_ = 0, written_ = 0;
};

}  // namespace sluice
