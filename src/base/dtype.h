// Element types, and the exact semantics of the 4-bit and 8-bit types.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace sluice {

// kE2M1 is packed two per byte, the even element in the low nibble. kE8M0 is a power of two, 2^(byte - 127);
// 255 is NaN. Source: OCP Microscaling Formats (MX) v1.0, sections 5.3 and 5.4. kE4M3 has a bias of 7 and no
// infinities; 0x7f and 0xff are NaN. Source: OCP 8-bit Floating Point Specification (OFP8) v1.0, section 5.2.
enum class DType : uint8_t { kF32, kBF16, kE2M1, kE8M0, kI32, kI64, kI16, kU8, kE4M3 };

const char* text(DType dtype);
bool parse(std::string_view word, DType* out);

// Bits of one element; kE2M1 has 4.
constexpr int bits_of(DType dtype) {
  switch (dtype) {
    case DType::kI64:
      return 64;
    case DType::kF32:
    case DType::kI32:
      return 32;
    case DType::kBF16:
    case DType::kI16:
      return 16;
    case DType::kE8M0:
    case DType::kU8:
    case DType::kE4M3:
      return 8;
    case DType::kE2M1:
      return 4;
  }
  return 0;
}

// Bytes of `elements` packed elements, rounded up to a whole byte.
constexpr int64_t bytes_of(DType dtype, int64_t elements) { return (elements * bits_of(dtype) + 7) / 8; }

constexpr int64_t kMxBlock = 32;  // elements that share one e8m0 scale

struct BF16 {
  uint16_t bits = 0;
};

inline float to_float(BF16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

// Round to nearest, ties to even; NaN stays NaN (quiet), overflow goes to infinity.
inline BF16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

struct E4M3 {
  uint8_t bits = 0;
};

inline constexpr float kE4M3Max = 448;

// Exact.
inline float to_float(E4M3 value) {
  const uint32_t code = value.bits & 0x7fu, sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
  if (code == 0x7f) return std::bit_cast<float>(0x7fc00000u | sign);
  // Codes below 8 are multiples of 2^-9; all others use f32's exponent with a different bias.
  const float magnitude =
      code < 8 ? static_cast<float>(code) * 0x1p-9f : std::bit_cast<float>((code + (120u << 3)) << 20);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

// Round to nearest, ties to even. Numbers beyond 448, and infinity, become 448; NaN stays NaN.
inline E4M3 to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
  const auto coded = [&](uint32_t code) { return E4M3{static_cast<uint8_t>(code | sign)}; };
  if (magnitude > 0x7f800000u) return coded(0x7f);
  const float size = std::bit_cast<float>(magnitude);
  if (size >= kE4M3Max) return coded(0x7e);
  // Adding 2^14, whose ulp in f32 is 2^-9, rounds a number below the smallest normal to a multiple of 2^-9.
  if (size < 0x1p-6f)
    return coded(std::bit_cast<uint32_t>(size + 0x1p14f) - std::bit_cast<uint32_t>(0x1p14f));
  return coded(((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3));
}

// The sixteen values of e2m1, by code.
inline constexpr float kE2M1Values[16] = {0.f,  .5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                                          -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};

// 2^(scale - 127) in double, exact for every byte; NaN for 255.
double e8m0_value(uint8_t scale);

}  // namespace sluice
