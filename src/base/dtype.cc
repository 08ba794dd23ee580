#include "base/dtype.h"

#include <cmath>
#include <limits>

namespace sluice {
namespace {

struct Name {
  DType dtype;
  const char* word;
};
constexpr Name kNames[] = {{DType::kF32, "f32"},   {DType::kBF16, "bf16"}, {DType::kE2M1, "e2m1"},
                           {DType::kE8M0, "e8m0"}, {DType::kI32, "i32"},   {DType::kI64, "i64"},
                           {DType::kI16, "i16"},   {DType::kU8, "u8"},     {DType::kE4M3, "e4m3"}};

}  // namespace

const char* text(DType dtype) {
  for (const Name& name : kNames)
    if (name.dtype == dtype) return name.word;
  return "unknown";
}

bool parse(std::string_view word, DType* out) {
  for (const Name& name : kNames)
    if (word == name.word) return *out = name.dtype, true;
  return false;
}

double e8m0_value(uint8_t scale) {
  if (scale == 255) return std::numeric_limits<double>::quiet_NaN();
  return std::ldexp(1.0, static_cast<int>(scale) - 127);
}

}  // namespace sluice
