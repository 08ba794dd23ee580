// Random tensors of a sensible size: activations that pass through them neither vanish nor overflow.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"

namespace sluice::apps {

enum class Fill : uint8_t {
  kMxfp4Codes,   // all sixteen equally likely
  kMxfp4Scales,  // around the scale at which sums over `width` weights have size one
  kWeight,       // bf16, variance 1 / width
  kBias,         // bf16, variance 1/64
  kNorm,         // bf16, about 1
  kUnit,         // bf16, variance 1
  kSmallF32,     // f32, variance 1/64
  kF8Codes,      // e4m3, below 2 in magnitude
  kF8Scales,     // e8m0, the scale at which sums over `width` such codes have size one
  kExpertIds,    // i64 from 0 to 15
};

// A stream of bytes; the same seed gives the same ones, however it is cut, in multiples of 8 bytes.
class RandomFill {
 public:
  explicit RandomFill(uint64_t seed);
  void fill(Fill what, int64_t width, std::span<std::byte> out);

 private:
  uint64_t next();
  std::vector<float> normals_;  // drawing from a table is a hundred times as fast as a logarithm
  uint64_t state_;
};

}  // namespace sluice::apps
