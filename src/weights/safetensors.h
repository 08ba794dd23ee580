// The safetensors format: an eight-byte length, a JSON header, then the tensors' bytes.
//
// Source  huggingface/safetensors, README "Format" and safetensors/src/tensor.rs (types, no holes, no
//         overlaps).
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sluice {

// Element types that a file can hold, a superset of base/dtype.h. The names are the format's.
enum class StoredType : uint8_t {
  kBool,
  kF4,  // e2m1, two per byte; shapes count elements, not bytes
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};
const char* text(StoredType type);
std::optional<StoredType> stored_type(std::string_view word);
int bits_of(StoredType type);
// Bytes of a tensor; empty if the product exceeds 63 bits or ends inside a byte. Sizes must be >= 0.
std::optional<int64_t> stored_bytes(StoredType type, std::span<const int64_t> shape);
// "BF16[128, 2880]"
std::string stored_text(StoredType type, std::span<const int64_t> shape);

constexpr int64_t kHeaderBytesMax = 100'000'000;  // the format's own limit
constexpr int kStoredRankMax = 8;
// per file: twice the number of tensors in all files of Kimi K2
constexpr int64_t kStoredTensorsMax = 1 << 18;

struct HeaderTensor {
  std::string name;
  StoredType type = StoredType::kU8;
  std::vector<int64_t> shape;    // at most kStoredRankMax sizes, each >= 0
  int64_t begin = 0, bytes = 0;  // offset in the file; size
};
struct SafetensorsHeader {
  std::vector<HeaderTensor> tensors;  // ordered by offset
  std::map<std::string, std::string> metadata;
};

// Bytes of the file's header, including the length field. `file` is the beginning of the file, `file_bytes`
// the size of the whole file. kCorrupt names `what` (the file), what was wanted and what was found.
Result<int64_t> safetensors_header_bytes(std::span<const std::byte> file, int64_t file_bytes,
                                         std::string_view what);

// Parses the header at the beginning of `file`, which must hold at least safetensors_header_bytes() bytes.
// Every returned tensor lies inside the file and has the size that its shape and type imply, and every byte
// after the header belongs to exactly one tensor. kCorrupt names `what`, the tensor, what was wanted and what
// was found.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file, int64_t file_bytes,
                                                   std::string_view what);

}  // namespace sluice
