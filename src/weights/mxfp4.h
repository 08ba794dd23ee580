// Conversion between f32 and MXFP4: e2m1 codes, two per byte with the even element in the low nibble, and one e8m0
// scale per 32 codes.
//
// Source  OCP Microscaling Formats (MX) v1.0, section 6.3: the scale is the largest power of two in the block
//         divided by the largest power of two in e2m1, which is 4.
#pragma once
#include <cstdint>
#include <span>

#include "base/status.h"

namespace sluice {

// scale   floor(log2(max |v|)) - 2 + 127, clamped to 0 .. 254. A block of zeros: 127. A NaN anywhere: 255, and
//         all codes 0.
// codes   v / 2^(scale - 127) rounded to the nearest of the sixteen values, ties to the even code, at most 6 in
//         magnitude; the sign is kept, also for zero. An infinity counts as the largest magnitude: its
//         block has scale 254, it becomes 6 (infinite again in f32), and its neighbors keep what that scale leaves.
//
// values.size() must be a multiple of 32, with half as many bytes of codes and one scale per 32 values;
// kInvalidArgument otherwise.
Status quantise_mxfp4(std::span<const float> values, std::span<uint8_t> codes, std::span<uint8_t> scales);

// Exact for every code and scale; a value above the largest f32 becomes infinite, and a scale of 255 gives NaN.
Status dequantise_mxfp4(std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                        std::span<float> values);

}  // namespace sluice
