// A checkpoint: safetensors files that are mapped into memory and checked when opened, or tensors supplied by
// a caller.
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

// One tensor of a checkpoint: a view that is valid while the Checkpoint exists. `data` may have any alignment.
struct CheckpointTensor {
  std::string name;
  StoredType type = StoredType::kU8;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  const std::string* file = nullptr;  // path of its file, or the name given to a caller's tensors
  Backend where = Backend::kCpu;      // for a caller's tensor: the backend whose memory holds `data`
};
// "model-1.safetensors: model.norm.weight": a tensor's name in error messages.
std::string place_of(const CheckpointTensor& tensor);

// Maps tensors to shards: the `weight_map` of model.safetensors.index.json.
using WeightMap = std::map<std::string, std::string>;
// Each shard must be a plain file name in the index's directory. kCorrupt names `what` and the key.
Result<WeightMap> parse_weight_map(const Json& index, std::string_view what);

class Checkpoint {
 public:
  // `path` is a .safetensors file, an index (*.safetensors.index.json), or a directory that contains one of
  // them: model.safetensors.index.json with its shards, model.safetensors, or a single *.safetensors file.
  // A directory that has both model.safetensors and an index that lists other files is rejected. Checks every
  // header (weights/safetensors.h). If there is an index, the shards must hold exactly the tensors that the
  // index lists, each in its listed shard. kIo and kCorrupt name the file, the tensor, what was wanted and
  // what was found.
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& path);
  // A checkpoint of a caller's contiguous tensors, which have checkpoint names; `place` replaces the file
  // name in errors. Reads the tensors' name, type, shape, data and `where`; the caller's memory must outlive
  // this object. kInvalidArgument names a tensor that appears twice, has no memory or has an invalid shape.
  static Result<std::unique_ptr<Checkpoint>> of_memory(std::string place,
                                                       std::vector<CheckpointTensor> tensors);
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<std::string>& files() const { return files_; }
  // Whether a tensor has the wanted type or a type that loading converts to it. Loading converts between the
  // number types (weights/numbers.h) for tensors of a file, never for a caller's tensors.
  bool holds(const CheckpointTensor& tensor, StoredType wanted) const;
  // All tensors, sorted by name.
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  int64_t bytes() const;  // sum over all tensors
  // kIo names a file that was truncated after it was opened, so its tensors can no longer be read.
  Status check_whole() const;

  const CheckpointTensor* find_if_there(std::string_view name) const;
  // kCorrupt: the checkpoint has no such tensor; the message suggests the most similar name.
  Result<const CheckpointTensor*> find(std::string_view name) const;
  // Also checks the type, as in holds(), and the shape. kCorrupt names the file, the tensor, what was wanted
  // and what was found.
  Result<const CheckpointTensor*> find(std::string_view name, StoredType type,
                                       const std::vector<int64_t>& shape) const;

  // Page hints for a tensor or part of a tensor (weights/mapped_file.h). They do nothing for a caller's
  // tensors.
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
  std::vector<std::string> files_;  // reserved in advance, because tensors point to its elements
  std::vector<MappedFile> maps_;    // one per element of files_; empty for a caller's tensors
  std::vector<CheckpointTensor> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

}  // namespace sluice
