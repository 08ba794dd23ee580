// Writes one safetensors file, its tensors in order and in pieces of any size, so that none needs to fit in memory.
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

// What a file of these tensors begins with: the length of its header, and the header. Errors as SafetensorsWriter::create.
Result<std::string> safetensors_header(const std::vector<TensorToWrite>& tensors,
                                       const std::map<std::string, std::string>& metadata);

// Writes beside the file under another name and renames at the end: no reader ever sees half of it, and a writer that is
// destroyed before finish() leaves no file. Not synced to the disk.
class SafetensorsWriter {
 public:
  // Reserves the space and writes the header. kInvalidArgument names a tensor that cannot be written (its name twice, or
  // "__metadata__"; more than 8 dimensions; no whole number of bytes); kIo names the file and the reason, and on a full disk
  // how many bytes were wanted.
  static Result<std::unique_ptr<SafetensorsWriter>> create(
      const std::string& path, std::vector<TensorToWrite> tensors,
      const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  int64_t bytes() const { return bytes_; }            // of all tensors
  int64_t bytes_written() const { return written_; }  // of them so far
  // The next bytes of the tensors, in the order given to create(); a piece may span several. kInvalidArgument if there are more
  // than the tensors have.
  Status write(std::span<const std::byte> piece);
  // kInvalidArgument if bytes are missing, naming the tensor that they belong to. Nothing may be written afterwards.
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
