// Random tensors scaled so that a model's activations neither vanish nor overflow.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "weights/parallel.h"

namespace sluice {

enum class Fill : uint8_t {
  kMxfp4Codes,   // all sixteen codes equally likely
  kMxfp4Scales,  // around the scale at which a sum of `width` weights has RMS 1
  kWeight,       // bf16, variance 1 / width
  kBias,         // bf16, variance 1/1024
  kEmbedding,    // bf16, variance `width`
  kNorm,         // bf16, about 1
  kUnit,         // bf16, variance 1
  kSmallF32,     // f32, variance 1/64
  kTinyF32,      // f32, variance 1/65536
  kF8Codes,      // e4m3, below 2 in magnitude
  kF8Scales,     // e8m0, the scale at which a sum of `width` kF8Codes has RMS 1
  kMxfp8Scales,  // e8m0, around the scale of kF8Scales
  kF8ScalesF32,  // f32, around the scale of kF8Scales
  kNvScales,     // e4m3, around 16
  kNvRowScales,  // f32, around the scale at which a sum of `width` e2m1 codes times kNvScales has RMS 1
  kExpertIds,    // i64 from 0 to 15
};

// How to fill a tensor; `width` is the length of the dot products that its weights enter.
struct RandomContents {
  Fill fill = Fill::kUnit;
  int64_t width = 1;
};

// A stream of random 8-byte words with random access: any thread can generate any part without the words
// before it. A word depends only on the seed and its number, not on how the stream is split. A tensor that
// ends inside a word uses the word's first bytes.
class RandomFill {
 public:
  explicit RandomFill(uint64_t seed);
  static uint64_t words(int64_t bytes) { return static_cast<uint64_t>((bytes + 7) / 8); }
  // Writes words first, first + 1, ... to `out`.
  void fill(const RandomContents& contents, uint64_t first, std::span<std::byte> out, Workers& workers);

 private:
  // Maps 16 bits of a word to an element's bytes.
  const std::vector<uint16_t>& table_of(const RandomContents& contents);
  void fill_part(const RandomContents& contents, const uint16_t* table, uint64_t first,
                 std::span<std::byte> out) const;

  std::vector<float> normals_;  // a table lookup is 100x faster than a logarithm
  uint64_t state_;
  std::map<std::pair<Fill, int64_t>, std::vector<uint16_t>> tables_;
};

}  // namespace sluice
