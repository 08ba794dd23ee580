// Checks shared by the validate() functions of several operations.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/refusal.h"

namespace sluice {

inline void need_between(Refusal& r, std::string_view name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;  // the messages are built only on failure
  r.need(false, std::string(name) + " from " + std::to_string(low) + " to " + std::to_string(high), name,
         value);
}

inline void need_float(Refusal& r, std::string_view name, DType type) {
  if (type == DType::kF32 || type == DType::kBF16) return;
  r.need(false, std::string(name) + " in f32 or bf16", std::string(name) + "=" + text(type));
}

inline void need_real(Refusal& r, std::string_view name, std::string_view what, bool ok, double value) {
  if (ok) return;
  r.need(false, std::string(name) + " " + std::string(what), std::string(name) + "=" + std::to_string(value));
}

// Checks a factor or summand of an f32 formula.
inline void need_moderate(Refusal& r, std::string_view name, double value) {
  need_real(r, name, "a finite number", value > -1e30 && value < 1e30, value);
}

constexpr int64_t kRowsMax = std::numeric_limits<int32_t>::max();  // row indices are i32 in every operation
constexpr int64_t kWidthMax = 65536;

}  // namespace sluice
