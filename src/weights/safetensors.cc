#include "weights/safetensors.h"

#include <algorithm>
#include <tuple>

#include "base/file_kind.h"
#include "base/json.h"

namespace sluice {
namespace {

struct TypeRow {
  StoredType type;
  const char* word;
  int bits;
};
constexpr TypeRow kTypes[] = {
    {StoredType::kBool, "BOOL", 8},
    {StoredType::kF4, "F4", 4},
    {StoredType::kF6E2M3, "F6_E2M3", 6},
    {StoredType::kF6E3M2, "F6_E3M2", 6},
    {StoredType::kU8, "U8", 8},
    {StoredType::kI8, "I8", 8},
    {StoredType::kF8E5M2, "F8_E5M2", 8},
    {StoredType::kF8E4M3, "F8_E4M3", 8},
    {StoredType::kF8E8M0, "F8_E8M0", 8},
    {StoredType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {StoredType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {StoredType::kI16, "I16", 16},
    {StoredType::kU16, "U16", 16},
    {StoredType::kF16, "F16", 16},
    {StoredType::kBF16, "BF16", 16},
    {StoredType::kI32, "I32", 32},
    {StoredType::kU32, "U32", 32},
    {StoredType::kF32, "F32", 32},
    {StoredType::kC64, "C64", 64},
    {StoredType::kF64, "F64", 64},
    {StoredType::kI64, "I64", 64},
    {StoredType::kU64, "U64", 64},
};

Status corrupt(std::string message) { return {Code::kCorrupt, std::move(message)}; }

std::string type_words() {
  std::string out;
  for (const TypeRow& row : kTypes) out += (out.empty() ? "" : ", ") + std::string(row.word);
  return out;
}

Status read_metadata(const JsonAt& at, std::map<std::string, std::string>* out) {
  SLUICE_TRY(at.need_object());
  for (const auto& [key, value] : at.value().items()) {
    const auto word = JsonAt(value, at.where() + "." + key).string();
    if (!word.ok()) return word.status();
    out->emplace(key, word.value());
  }
  return {};
}

Status read_shape(const JsonAt& tensor, std::vector<int64_t>* out) {
  const auto shape = tensor.at("shape");
  if (!shape.ok()) return shape.status();
  const auto items = shape.value().items();
  if (!items.ok()) return items.status();
  if (items.value().size() > kStoredRankMax) return shape.value().wrong("at most 8 dimensions");
  for (const JsonAt& item : items.value()) {
    const auto size = item.integer(0, INT64_MAX);
    if (!size.ok()) return size.status();
    out->push_back(size.value());
  }
  return {};
}

// Reads one entry of the header and converts its offsets to offsets in the file. The header has `data_begin`
// bytes; `data_bytes` bytes follow it.
Result<HeaderTensor> read_tensor(const std::string& name, const JsonAt& at, int64_t data_begin,
                                 int64_t data_bytes) {
  SLUICE_TRY(at.need_object());
  for (const auto& [key, value] : at.value().items())
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      return corrupt(at.where() + ": wanted dtype, shape and data_offsets, found '" + key + "'");
  HeaderTensor out;
  out.name = name;
  const auto word = at.string("dtype");
  if (!word.ok()) return word.status();
  const auto type = stored_type(word.value());
  if (!type)
    return corrupt(at.where() + ".dtype: wanted one of " + type_words() + ", found '" + word.value() + "'");
  out.type = *type;
  SLUICE_TRY(read_shape(at, &out.shape));
  const auto offsets = at.at("data_offsets");
  if (!offsets.ok()) return offsets.status();
  const auto pair = offsets.value().items();
  if (!pair.ok()) return pair.status();
  if (pair.value().size() != 2) return offsets.value().wrong("two offsets, begin and end");
  const auto begin = pair.value()[0].integer(0, INT64_MAX);
  const auto end = pair.value()[1].integer(0, INT64_MAX);
  if (!begin.ok()) return begin.status();
  if (!end.ok()) return end.status();
  const std::string found = std::to_string(begin.value()) + " to " + std::to_string(end.value());
  if (begin.value() > end.value())
    return corrupt(offsets.value().where() + ": wanted begin <= end, found " + found);
  if (end.value() > data_bytes)
    return corrupt(offsets.value().where() + ": wanted at most the " + std::to_string(data_bytes) +
                   " bytes that follow the file's header, found " + found +
                   "; the file is truncated or does not match its header");
  const auto bytes = stored_bytes(out.type, out.shape);
  if (!bytes)
    return corrupt(at.where() + ".shape: wanted a whole number of bytes below 2^63, found " +
                   stored_text(out.type, out.shape));
  if (*bytes != end.value() - begin.value())
    return corrupt(offsets.value().where() + ": wanted " + std::to_string(*bytes) + " bytes for " +
                   stored_text(out.type, out.shape) + ", found " + found);
  out.begin = data_begin + begin.value();
  out.bytes = *bytes;
  return out;
}

// The tensors, sorted by offset, must fill the rest of the file without gaps.
Status check_cover(const std::vector<HeaderTensor>& tensors, int64_t data_begin, int64_t file_bytes,
                   std::string_view what) {
  int64_t at = data_begin;
  const std::string* before = nullptr;
  for (const HeaderTensor& t : tensors) {
    if (t.begin != at)
      return corrupt(std::string(what) + ": " + t.name + ": wanted its bytes at offset " +
                     std::to_string(at - data_begin) + ", where " + (before ? *before : "the header") +
                     " ends, found offset " + std::to_string(t.begin - data_begin) +
                     (t.begin < at ? " (an overlap)" : " (a hole)"));
    at = t.begin + t.bytes;
    before = &t.name;
  }
  if (at == file_bytes) return {};
  return corrupt(std::string(what) + ": wanted " + std::to_string(at) +
                 " bytes, the end of its last tensor, found " + std::to_string(file_bytes));
}

}  // namespace

const char* text(StoredType type) {
  for (const TypeRow& row : kTypes)
    if (row.type == type) return row.word;
  return "unknown";
}

std::optional<StoredType> stored_type(std::string_view word) {
  for (const TypeRow& row : kTypes)
    if (word == row.word) return row.type;
  return {};
}

int bits_of(StoredType type) {
  for (const TypeRow& row : kTypes)
    if (row.type == type) return row.bits;
  return 0;
}

std::optional<int64_t> stored_bytes(StoredType type, std::span<const int64_t> shape) {
  // A zero size makes the tensor empty, even if the other sizes would overflow.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t bits = bits_of(type);
  for (int64_t size : shape)
    if (__builtin_mul_overflow(bits, size, &bits)) return {};
  if (bits % 8) return {};
  return bits / 8;
}

std::string stored_text(StoredType type, std::span<const int64_t> shape) {
  std::string out = std::string(text(type)) + "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

Result<int64_t> safetensors_header_bytes(std::span<const std::byte> file, int64_t file_bytes,
                                         std::string_view what) {
  if (file_bytes < 8 || file.size() < 8)
    return corrupt(std::string(what) + ": wanted a safetensors file of at least 8 bytes, found " +
                   std::to_string(file_bytes));
  uint64_t length = 0;
  for (int i = 0; i < 8; ++i)
    length |= uint64_t{static_cast<uint8_t>(file[static_cast<size_t>(i)])} << (8 * i);
  const std::string_view begin(reinterpret_cast<const char*>(file.data()),
                               std::min<size_t>(file.size(), 256));
  if (const std::string_view kind = file_kind(begin); !kind.empty())
    return corrupt(std::string(what) + ": wanted a safetensors file, found " + std::string(kind));
  if (length > static_cast<uint64_t>(kHeaderBytesMax))
    return corrupt(std::string(what) + ": wanted a safetensors header of at most " +
                   std::to_string(kHeaderBytesMax) + " bytes, found " + std::to_string(length));
  const auto bytes = static_cast<int64_t>(length) + 8;
  if (bytes > file_bytes)
    return corrupt(std::string(what) + ": wanted at least " + std::to_string(bytes) +
                   " bytes for the header, found " + std::to_string(file_bytes));
  return bytes;
}

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file, int64_t file_bytes,
                                                   std::string_view what) {
  const auto header = safetensors_header_bytes(file, file_bytes, what);
  if (!header.ok()) return header.status();
  const int64_t data_begin = header.value();
  if (static_cast<int64_t>(file.size()) < data_begin)
    return invalid(std::string(what) + ": wanted the " + std::to_string(data_begin) +
                   " bytes of the header, found " + std::to_string(file.size()));
  const std::string_view json(reinterpret_cast<const char*>(file.data()) + 8,
                              static_cast<size_t>(data_begin - 8));
  // Counted before parsing: a header has one object per tensor.
  if (std::count(json.begin(), json.end(), '{') > kStoredTensorsMax + 2)
    return corrupt(std::string(what) + ": wanted at most " + std::to_string(kStoredTensorsMax) +
                   " tensors in its header, found more");
  if (json.starts_with("\xef\xbb\xbf"))
    return corrupt(std::string(what) + ": wanted a header that begins with {, found a byte order mark");
  const auto parsed = parse_json(json, what);
  if (!parsed.ok()) return parsed.status();
  const JsonAt root(parsed.value(), std::string(what));
  SLUICE_TRY(root.need_object());
  SafetensorsHeader out;
  for (const auto& [name, value] : parsed.value().items()) {
    const JsonAt at(value, std::string(what) + ": " + name);
    if (name == "__metadata__") {
      SLUICE_TRY(read_metadata(at, &out.metadata));
      continue;
    }
    auto tensor = read_tensor(name, at, data_begin, file_bytes - data_begin);
    if (!tensor.ok()) return tensor.status();
    out.tensors.push_back(std::move(tensor).value());
  }
  std::sort(out.tensors.begin(), out.tensors.end(), [](const HeaderTensor& a, const HeaderTensor& b) {
    return std::tie(a.begin, a.bytes, a.name) < std::tie(b.begin, b.bytes, b.name);
  });
  SLUICE_TRY(check_cover(out.tensors, data_begin, file_bytes, what));
  return out;
}

}  // namespace sluice
