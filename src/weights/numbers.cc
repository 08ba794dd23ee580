#include "weights/numbers.h"

#include <bit>
#include <cstring>

namespace sluice {
namespace {

// Element i of unaligned bytes.
template <class T>
T number_at(const std::byte* from, int64_t i) {
  T value;
  std::memcpy(&value, from + i * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

template <class Read>
void convert_each(int64_t count, DType dtype, std::byte* to, Read read) {
  if (dtype == DType::kF32) {
    for (int64_t i = 0; i < count; ++i) {
      const float value = read(i);
      std::memcpy(to + 4 * i, &value, sizeof value);
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const BF16 value = to_bf16(read(i));
    std::memcpy(to + 2 * i, &value, sizeof value);
  }
}

}  // namespace

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  // Adds 112 to exponents, the difference of the biases. The exponent of infinities and NaN becomes all ones.
  // Subnormals are multiples of 2^-24.
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f));
}

void convert_numbers(StoredType stored, const std::byte* from, int64_t count, DType dtype, std::byte* to) {
  switch (stored) {
    case StoredType::kF32:
      if (dtype == DType::kF32)
        std::memcpy(to, from, static_cast<size_t>(4 * count));
      else
        convert_each(count, dtype, to, [&](int64_t i) { return number_at<float>(from, i); });
      return;
    case StoredType::kF16:
      return convert_each(count, dtype, to,
                          [&](int64_t i) { return half_to_float(number_at<uint16_t>(from, i)); });
    default:
      if (dtype == DType::kBF16)
        std::memcpy(to, from, static_cast<size_t>(2 * count));
      else
        convert_each(count, dtype, to, [&](int64_t i) { return to_float(number_at<BF16>(from, i)); });
  }
}

}  // namespace sluice
