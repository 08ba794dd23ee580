// The element type of a paged KV cache.
#pragma once
#include <string_view>

#include "base/dtype.h"
#include "base/fields.h"

namespace sluice {

enum class CacheType : uint8_t {
  kSame,  // the type of the queries, keys and values
  kE4M3,  // DType::kE4M3, without a scale
};

template <>
struct EnumWords<CacheType> {
  static constexpr std::string_view words[] = {"same", "e4m3"};
};

// The element type of a cache used with tensors of `type`.
constexpr DType cache_dtype(CacheType cache, DType type) {
  return cache == CacheType::kE4M3 ? DType::kE4M3 : type;
}

}  // namespace sluice
