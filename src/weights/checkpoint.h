// A checkpoint: safetensors files that are mapped into memory and checked when opened, or tensors supplied by a caller.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "base/tensor.h"
#include "weights/mapped_file.h"
#include "weights/safetensors.h"

namespace sluice {

// One tensor of a checkpoint: a view that is valid as long as the Checkpoint. `data` may have any alignment.
struct CheckpointTensor {
  std::string name;
  StoredType type = StoredType::kU8;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  const std::string* file = nullptr;  // path of its file, or the name given to a caller's tensors
  Backend where = Backend::kCpu;      // of a caller's tensor: whose memory `data` is
};
// "model-1.safetensors: model.norm.weight": a tensor's name in error messages.
std::string place_of(const CheckpointTensor& tensor);

// Maps tensors to shards: the `weight_map` of model.safetensors.index.json.
using WeightMap = std::map<std::string, std::string>;
// kCorrupt names `what` and the key: a shard must be the plain name of a file beside the index.
Result<WeightMap> parse_weight_map(const Json& index, std::string_view what);

class Checkpoint {
 public:
  // `path` is a .safetensors file, an index (*.safetensors.index.json), or a directory that contains one of
  // them: model.safetensors.index.json with its shards, model.safetensors, or a single *.safetensors file.
  // A directory with model.safetensors and an index of other files is refused. Every header is checked (weights/safetensors.h). With an
  // index, the shards must hold exactly the tensors that it lists, each in the listed shard. kIo or
  // kCorrupt names the file, the tensor, what was wanted and what was found.
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& path);
  // Takes a caller's contiguous tensors under checkpoint names; `place` replaces the file name in errors.
  // Uses name, type, shape, data and `where`; the caller's memory must outlive this object.
  // kInvalidArgument names a tensor that is given twice, has no memory or has an impossible shape.
  static Result<std::unique_ptr<Checkpoint>> of_memory(std::string place,
                                                       std::vector<CheckpointTensor> tensors);
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<std::string>& files() const { return files_; }
  // Whether a tensor has this type or a convertible one: loading converts number types of a file
  // (weights/numbers.h), but takes a caller's tensors as they are.
  bool holds(const CheckpointTensor& tensor, StoredType wanted) const;
  // All tensors, sorted by name.
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  int64_t bytes() const;  // of all tensors
  // kIo names a file that has become shorter since it was opened, so that its tensors can no longer be read.
  Status check_whole() const;

  const CheckpointTensor* find_if_there(std::string_view name) const;
  // kCorrupt: the checkpoint has no such tensor; the message gives the nearest name.
  Result<const CheckpointTensor*> find(std::string_view name) const;
  // Also checks type (as in holds()) and shape; kCorrupt names file and tensor, what was wanted and what was found.
  Result<const CheckpointTensor*> find(std::string_view name, StoredType type,
                                       const std::vector<int64_t>& shape) const;

  // Page hints for a tensor or a part of it (weights/mapped_file.h); ignored for a caller's tensors.
  void prefetch(const CheckpointTensor& tensor) const { prefetch(tensor, 0, tensor.bytes); }
  void release(const CheckpointTensor& tensor) const { release(tensor, 0, tensor.bytes); }
  void prefetch(const CheckpointTensor& tensor, int64_t begin, int64_t bytes) const;
  void release(const CheckpointTensor& tensor, int64_t begin, int64_t bytes) const;

 private:
  explicit Checkpoint(std::string path) : path_(std::move(path)) {}
  Status open_index(const std::string& path, bool beside_whole = false);
  Status open_directory();
  Status add_file(const std::string& path);
  Status check_against(const WeightMap& map, const std::string& directory, const std::string& index) const;
  Status finish();
  const MappedFile& map_of(const CheckpointTensor& tensor) const;

  std::string path_;
  std::vector<std::string> files_;  // reserved up front, because tensors point into it
  std::vector<MappedFile> maps_;    // of files_, in the same order; empty for tensors in memory
  std::vector<CheckpointTensor> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

}  // namespace sluice
