// Numbers as checkpoints store them, in the types that Sluice computes with.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "weights/safetensors.h"

namespace sluice {

// Types of which each can stand for another: fine-tuning tools save some tensors of a bf16 model, or all, in F32 or F16.
constexpr bool is_number(StoredType type) {
  return type == StoredType::kBF16 || type == StoredType::kF16 || type == StoredType::kF32;
}

// Bytes of so many of them.
inline int64_t number_bytes(StoredType type, int64_t count) { return count * bits_of(type) / 8; }

// The value of an IEEE half, exact; NaN stays NaN.
float half_to_float(uint16_t bits);

// `count` numbers of type `stored` as `dtype`, bf16 or f32. Pointers need no alignment. To f32 every value is exact; to bf16 it is rounded
// to nearest, ties to even, beyond the largest to an infinity, and NaN stays NaN.
void convert_numbers(StoredType stored, const std::byte* from, int64_t count, DType dtype, std::byte* to);

}  // namespace sluice
