#include "weights/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/fields.h"
#include "weights/numbers.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTensorsSuffix = ".safetensors", kIndexSuffix = ".safetensors.index.json";
constexpr std::string_view kWholeFile = "model.safetensors", kWholeIndex = "model.safetensors.index.json";
constexpr int64_t kIndexBytesMax = kHeaderBytesMax, kIndexTensorsMax = 1 << 19;

Status corrupt_checkpoint(std::string message) { return {Code::kCorrupt, std::move(message)}; }
Status io(std::string message) { return {Code::kIo, std::move(message)}; }

// The file names in a directory that end in `suffix`, sorted.
Result<std::vector<std::string>> names_in(const std::string& directory, std::string_view suffix) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.ends_with(suffix)) out.push_back(std::move(name));
  }
  if (error) return io(directory + ": cannot be listed: " + error.message());
  std::sort(out.begin(), out.end());
  return out;
}

bool is_plain_name(const std::string& file) {
  return file.ends_with(kTensorsSuffix) && file.size() > kTensorsSuffix.size() && file[0] != '.' &&
         file.find('/') == std::string::npos && file.find('\0') == std::string::npos;
}

}  // namespace

std::string place_of(const CheckpointTensor& tensor) { return *tensor.file + ": " + tensor.name; }

Result<WeightMap> parse_weight_map(const Json& index, std::string_view what) {
  const JsonAt root(index, std::string(what));
  const auto map = root.at("weight_map");
  if (!map.ok()) return map.status();
  SLUICE_TRY(map.value().need_object());
  WeightMap out;
  for (const auto& [name, value] : map.value().value().items()) {
    const JsonAt at(value, map.value().where() + "." + name);
    const auto file = at.string();
    if (!file.ok()) return file.status();
    if (!is_plain_name(file.value()))
      return at.wrong("the name of a .safetensors file in the index's directory");
    out.emplace(name, file.value());
  }
  if (out.empty()) return map.value().wrong("at least one tensor");
  return out;
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& path) {
  std::unique_ptr<Checkpoint> out(new Checkpoint(path));
  std::error_code error;
  if (path.find('\0') != std::string::npos) return io("path: wanted no zero byte, found one");
  if (fs::is_directory(path, error)) {
    SLUICE_TRY(out->open_directory());
  } else if (!fs::exists(path, error)) {
    return io(path + ": wanted a .safetensors file or a directory, found " +
              (error ? error.message() : std::string("nothing")));
  } else if (path.ends_with(kIndexSuffix)) {
    SLUICE_TRY(out->open_index(path));
  } else if (path.ends_with(kTensorsSuffix)) {
    out->files_.reserve(1);
    SLUICE_TRY(out->add_file(path));
  } else {
    return invalid(path +
                   ": wanted a directory, a .safetensors file or a .safetensors.index.json, found a file "
                   "with another extension");
  }
  SLUICE_TRY(out->finish());
  return out;
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::of_memory(std::string place,
                                                          std::vector<CheckpointTensor> tensors) {
  std::unique_ptr<Checkpoint> out(new Checkpoint(place));
  out->files_.push_back(std::move(place));
  for (CheckpointTensor& t : tensors) {
    t.file = &out->files_[0];
    if (t.shape.size() > kStoredRankMax)
      return invalid(place_of(t) + ": wanted at most " + std::to_string(kStoredRankMax) +
                     " dimensions, found " + std::to_string(t.shape.size()));
    for (const int64_t size : t.shape)
      if (size < 0)
        return invalid(place_of(t) + ": wanted sizes of 0 or more, found " + std::to_string(size));
    const auto bytes = stored_bytes(t.type, t.shape);
    if (!bytes)
      return invalid(place_of(t) + ": wanted a whole number of bytes below 2^63, found " +
                     stored_text(t.type, t.shape));
    if (!t.data && *bytes > 0)
      return invalid(place_of(t) + ": wanted a pointer to " + std::to_string(*bytes) + " bytes for " +
                     stored_text(t.type, t.shape) + ", found null");
    t.bytes = *bytes;
  }
  out->tensors_ = std::move(tensors);
  Status status = out->finish();
  if (!status.ok()) return invalid(std::move(status.message));
  return out;
}

// Prefers the file names of transformers, as transformers does.
Status Checkpoint::open_directory() {
  const auto tensors = names_in(path_, kTensorsSuffix);
  const auto indices = names_in(path_, kIndexSuffix);
  if (!tensors.ok()) return tensors.status();
  if (!indices.ok()) return indices.status();
  const std::string base = path_.ends_with('/') ? path_ : path_ + "/";
  const auto& files = tensors.value();
  const bool whole = std::ranges::count(files, kWholeFile) > 0;
  const bool sharded = std::ranges::count(indices.value(), kWholeIndex) > 0;
  if (sharded) return open_index(base + std::string(kWholeIndex), whole);
  const size_t count = indices.value().size();
  if (!whole && count > 1)
    return invalid(path_ + ": wanted one checkpoint, found " + indices.value()[0] + " and " +
                   indices.value()[1] + "; keep one of them in the directory");
  if (!whole && count == 1) return open_index(base + indices.value()[0]);
  if (!whole && files.size() != 1) {
    std::string found = files.empty() ? "none" : std::to_string(files.size()) + " *.safetensors and no index";
    if (files.empty())
      for (const char* other : {".bin", ".gguf", ".pt", ".pth", ".ckpt"})
        if (const auto names = names_in(path_, other); names.ok() && !names.value().empty())
          found += (found == "none" ? ", but " : ", ") + names.value()[0];
    return io(
        path_ +
        ": wanted model.safetensors.index.json, model.safetensors or exactly one *.safetensors, found " +
        found);
  }
  files_.reserve(1);
  return add_file(base + (whole ? std::string(kWholeFile) : files[0]));
}

// `beside_whole`: the directory also has a model.safetensors. transformers loads that file, and vLLM loads
// the files of the index, so the index must name that file only.
Status Checkpoint::open_index(const std::string& path, bool beside_whole) {
  const auto text = read_file(path, kIndexBytesMax);
  if (!text.ok()) return text.status();
  // Counted before parsing: an index has four quotes per tensor, around the tensor's name and the file's name.
  if (std::count(text.value().begin(), text.value().end(), '"') / 4 > kIndexTensorsMax)
    return corrupt_checkpoint(path + ": wanted at most " + std::to_string(kIndexTensorsMax) +
                              " tensors, found more");
  const auto index = parse_json(text.value(), path);
  if (!index.ok()) return index.status();
  const auto map = parse_weight_map(index.value(), path);
  if (!map.ok()) return map.status();
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map.value()) shards.insert(shard);
  const auto other = std::ranges::find_if(shards, [](const std::string& s) { return s != kWholeFile; });
  if (beside_whole && other != shards.end())
    return invalid(path_ + ": wanted one checkpoint, found model.safetensors and an index of other files (" +
                   std::string(kWholeIndex) + ": " + *other +
                   "); move model.safetensors or the index out of the directory");
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  files_.reserve(shards.size());
  for (const std::string& shard : shards) SLUICE_TRY(add_file(directory + shard));
  return check_against(map.value(), directory, path);
}

Status Checkpoint::add_file(const std::string& path) {
  auto map = MappedFile::open(path);
  if (!map.ok()) return map.status();
  const auto bytes = map.value().bytes();
  const auto header = parse_safetensors_header(bytes, static_cast<int64_t>(bytes.size()), path);
  if (!header.ok()) return header.status();
  files_.push_back(path);
  for (const HeaderTensor& t : header.value().tensors)
    tensors_.push_back({.name = t.name,
                        .type = t.type,
                        .shape = t.shape,
                        .data = bytes.data() + t.begin,
                        .bytes = t.bytes,
                        .file = &files_.back()});
  maps_.push_back(std::move(map).value());
  return {};
}

Status Checkpoint::check_against(const WeightMap& map, const std::string& directory,
                                 const std::string& index) const {
  std::set<std::string_view> found;
  for (const CheckpointTensor& t : tensors_) {
    const auto entry = map.find(t.name);
    if (entry == map.end())
      return corrupt_checkpoint(place_of(t) + ": wanted an entry in " + index + ", found none");
    if (directory + entry->second != *t.file)
      return corrupt_checkpoint(place_of(t) + ": wanted it in " + entry->second + ", as " + index +
                                " says, found it here");
    found.insert(t.name);
  }
  for (const auto& [name, shard] : map)
    if (!found.contains(name))
      return corrupt_checkpoint(index + ": " + name + ": wanted it in " + shard +
                                ", found no such tensor there");
  return {};
}

Status Checkpoint::finish() {
  std::sort(tensors_.begin(), tensors_.end(),
            [](const CheckpointTensor& a, const CheckpointTensor& b) { return a.name < b.name; });
  by_name_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto [at, is_new] = by_name_.emplace(tensors_[i].name, i);
    if (!is_new)
      return corrupt_checkpoint(place_of(tensors_[i]) + ": wanted each tensor once, found it in " +
                                *tensors_[at->second].file + " too");
  }
  return {};
}

int64_t Checkpoint::bytes() const {
  int64_t sum = 0;
  for (const CheckpointTensor& t : tensors_) sum += t.bytes;
  return sum;
}

Status Checkpoint::check_whole() const {
  for (const MappedFile& map : maps_) SLUICE_TRY(map.check_whole());
  return {};
}

bool Checkpoint::holds(const CheckpointTensor& tensor, StoredType wanted) const {
  return tensor.type == wanted || (!maps_.empty() && is_number(tensor.type) && is_number(wanted));
}

const CheckpointTensor* Checkpoint::find_if_there(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &tensors_[at->second];
}

Result<const CheckpointTensor*> Checkpoint::find(std::string_view name) const {
  if (const CheckpointTensor* tensor = find_if_there(name)) return tensor;
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const CheckpointTensor& t : tensors_) names.push_back(t.name);
  const std::string near = nearest(name, names);
  return corrupt_checkpoint(path_ + ": wanted tensor '" + std::string(name) + "', found no such name among " +
                            std::to_string(tensors_.size()) +
                            (near.empty() ? "" : "; the nearest is '" + near + "'"));
}

Result<const CheckpointTensor*> Checkpoint::find(std::string_view name, StoredType type,
                                                 const std::vector<int64_t>& shape) const {
  const auto found = find(name);
  if (!found.ok()) return found.status();
  const CheckpointTensor& t = *found.value();
  if (holds(t, type) && t.shape == shape) return &t;
  return corrupt_checkpoint(place_of(t) + ": wanted " + stored_text(type, shape) + ", found " +
                            stored_text(t.type, t.shape));
}

const MappedFile& Checkpoint::map_of(const CheckpointTensor& tensor) const {
  return maps_[static_cast<size_t>(tensor.file - files_.data())];
}

void Checkpoint::prefetch(const CheckpointTensor& tensor, int64_t begin, int64_t bytes) const {
  if (!maps_.empty()) map_of(tensor).prefetch(tensor.data + begin, bytes);
}
void Checkpoint::release(const CheckpointTensor& tensor, int64_t begin, int64_t bytes) const {
  if (!maps_.empty()) map_of(tensor).release(tensor.data + begin, bytes);
}

}  // namespace sluice
