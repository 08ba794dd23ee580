// Conversion between f32 and MXFP4: e2m1 codes, two per byte with the even element in the low nibble, and one
// e8m0 scale per 32 codes.
//
// Source  OCP Microscaling Formats (MX) v1.0, section 6.3: the scale is the largest power of two in the block
//         divided by the largest power of two in e2m1, which is 4.
#pragma once
#include <cstdint>
#include <span>

#include "base/status.h"

namespace sluice {

// scale   floor(log2(max |v|)) - 2 + 127, clamped to 0 .. 254. A block of zeros has scale 127. A block that
//         contains a NaN has scale 255, and all its codes are 0.
// codes   v / 2^(scale - 127) rounded to the nearest of the sixteen values, ties to the even code, clamped to
//         magnitude 6. The sign is kept, even for zero. A block that contains an infinity has scale 254: the
//         infinity becomes 6, which dequantizes to infinity, and the other values are rounded with that
//         scale.
//
// kInvalidArgument unless values.size() is a multiple of 32, with half as many bytes of codes and one scale
// per 32 values.
Status quantise_mxfp4(std::span<const float> values, std::span<uint8_t> codes, std::span<uint8_t> scales);

// Exact for every code and scale. A value above the largest f32 becomes infinite; a scale of 255 gives NaN.
Status dequantise_mxfp4(std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                        std::span<float> values);

}  // namespace sluice
