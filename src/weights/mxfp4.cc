#include "weights/mxfp4.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/dtype.h"

namespace sluice {
namespace {

Status check_sizes(size_t values, size_t codes, size_t scales) {
  if (values % kMxBlock == 0 && codes == values / 2 && scales == values / kMxBlock) return {};
  return invalid(
      "mxfp4: wanted a multiple of 32 values, half as many bytes of codes and a scale for each 32, found " +
      std::to_string(values) + " values, " + std::to_string(codes) + " bytes of codes, " +
      std::to_string(scales) + " scales");
}

uint8_t block_scale(std::span<const float> block) {
  float largest = 0;
  for (float v : block) {
    if (std::isnan(v)) return 255;
    largest = std::max(largest, std::abs(v));
  }
  if (largest == 0) return 127;
  if (std::isinf(largest)) return 254;
  return static_cast<uint8_t>(std::clamp(std::ilogb(largest) - 2 + 127, 0, 254));
}

uint8_t nearest_code(double scaled) {
  // The middle between codes c and c + 1; a tie goes to the even code.
  constexpr double kMiddle[7] = {.25, .75, 1.25, 1.75, 2.5, 3.5, 5};
  const double magnitude = std::abs(scaled);
  uint8_t code = 0;
  while (code < 7 && (magnitude > kMiddle[code] || (magnitude == kMiddle[code] && code % 2 == 1))) ++code;
  return static_cast<uint8_t>(code | (std::signbit(scaled) ? 8 : 0));
}

}  // namespace

Status quantise_mxfp4(std::span<const float> values, std::span<uint8_t> codes, std::span<uint8_t> scales) {
  SLUICE_TRY(check_sizes(values.size(), codes.size(), scales.size()));
  for (size_t b = 0; b < scales.size(); ++b) {
    const auto block = values.subspan(b * kMxBlock, kMxBlock);
    scales[b] = block_scale(block);
    const auto code = [&](size_t i) {
      return scales[b] == 255 ? 0 : nearest_code(std::ldexp(double{block[i]}, 127 - scales[b]));
    };
    for (size_t i = 0; i < kMxBlock; i += 2)
      codes[(b * kMxBlock + i) / 2] = static_cast<uint8_t>(code(i) | code(i + 1) << 4);
  }
  return {};
}

Status dequantise_mxfp4(std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                        std::span<float> values) {
  SLUICE_TRY(check_sizes(values.size(), codes.size(), scales.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    const int code = codes[i / 2] >> (i % 2 * 4) & 15;
    values[i] = static_cast<float>(kE2M1Values[code] * e8m0_value(scales[i / kMxBlock]));
  }
  return {};
}

}  // namespace sluice
