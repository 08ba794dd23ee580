// Between f32 and MXFP4: e2m1 codes, two to a byte with the even element in the low nibble, and one e8m0
// scale for each 32 of them.
//
// Source  OCP Microscaling Formats (MX) v1.0, section 6.3: the scale is the largest power of two in the block
//         over the largest power of two in e2m1, which is 4.
#pragma once
#include <cstdint>
#include <span>

#include "base/status.h"

namespace sluice {

// scale   floor(log2(max |v|)) - 2 + 127, held to 0 .. 254. A block of zeros: 127. A NaN anywhere: 255, and
//         all codes 0.
// codes   v / 2^(scale - 127) to the nearest of the sixteen values, halfway to the even code, at most 6 in
//         magnitude; the sign is kept, that of zero too. An infinity is the largest magnitude there is: its
//         block has scale 254, it becomes 6 (infinite again in f32), and its neighbours what is left.
//
// values.size() is a multiple of 32, codes have half as many bytes, scales one for each 32 values;
// kInvalidArgument otherwise.
Status quantise_mxfp4(std::span<const float> values, std::span<uint8_t> codes, std::span<uint8_t> scales);

// Exact for every code and scale; what exceeds the largest f32 is infinite, and a scale of 255 makes NaN.
Status dequantise_mxfp4(std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                        std::span<float> values);

}  // namespace sluice
