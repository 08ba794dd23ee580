// Converts checkpoint numbers to the types that Sluice computes with.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "weights/safetensors.h"

namespace sluice {

// The types that loading converts between. Fine-tuning tools save some or all tensors of a bf16 model in F32
// or F16.
constexpr bool is_number(StoredType type) {
  return type == StoredType::kBF16 || type == StoredType::kF16 || type == StoredType::kF32;
}

// Bytes of `count` numbers.
inline int64_t number_bytes(StoredType type, int64_t count) { return count * bits_of(type) / 8; }

// The exact value of an IEEE half; NaN stays NaN.
float half_to_float(uint16_t bits);

// Converts `count` numbers of type `stored` to `dtype`, which is bf16 or f32. Pointers need no alignment.
// Conversion to f32 is exact. Conversion to bf16 rounds to nearest, ties to even: overflow gives an infinity,
// and NaN stays NaN.
void convert_numbers(StoredType stored, const std::byte* from, int64_t count, DType dtype, std::byte* to);

}  // namespace sluice
