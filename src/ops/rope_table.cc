#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "ops/rope.h"

namespace sluice {
namespace {

Status check(const RopeScaling& s, int64_t rows, int64_t rotary, const float* table) {
  const auto need = [](bool ok, const char* what, double found) {
    return ok ? Status{}
              : invalid(std::string("rope_table: wanted ") + what + ", found " + std::to_string(found));
  };
  SLUICE_TRY(need(rotary >= 2 && rotary % 2 == 0, "rotary even and at least 2", static_cast<double>(rotary)));
  SLUICE_TRY(need(rows >= 0, "rows at least 0", static_cast<double>(rows)));
  SLUICE_TRY(need(rows == 0 || table != nullptr, "a table that is not null", 0));
  SLUICE_TRY(need(s.theta > 1 && std::isfinite(s.theta), "theta finite and above 1", s.theta));
  SLUICE_TRY(need(s.factor >= 1 && std::isfinite(s.factor), "factor finite and at least 1", s.factor));
  SLUICE_TRY(need(s.attention_factor >= 0 && std::isfinite(s.attention_factor),
                  "attention_factor finite and at least 0", s.attention_factor));
  if (s.factor == 1) return {};
  SLUICE_TRY(need(s.original_context > 0 && std::isfinite(s.original_context),
                  "original_context finite and above 0", s.original_context));
  SLUICE_TRY(need(s.beta_slow > 0, "beta_slow above 0", s.beta_slow));
  // Kimi K2 has equal values, which make the blend a step.
  const bool may_be_equal = s.blend == RopeScaling::Blend::kPairs;
  const bool ordered = may_be_equal ? s.beta_fast >= s.beta_slow : s.beta_fast > s.beta_slow;
  return need(
      ordered && std::isfinite(s.beta_fast),
      may_be_equal ? "beta_fast finite and at least beta_slow" : "beta_fast finite and above beta_slow",
      s.beta_fast);
}

// The range of the blend: pairs below `low` keep their frequency, pairs above `high` get frequency / factor.
struct Ramp {
  double low, high;
};

Ramp ramp_of(const RopeScaling& s, int64_t rotary) {
  // The (fractional) pair that rotates `rotations` times over the original context.
  const auto pair_of = [&](double rotations) {
    const double wavelength = s.original_context / (rotations * 2 * std::numbers::pi);
    return 0.5 * static_cast<double>(rotary) * std::log(wavelength) / std::log(s.theta);
  };
  Ramp ramp{pair_of(s.beta_fast), pair_of(s.beta_slow)};
  if (s.truncate == RopeScaling::Truncate::kYes) ramp = {std::floor(ramp.low), std::ceil(ramp.high)};
  ramp = {std::max(ramp.low, 0.0), std::min(ramp.high, static_cast<double>(rotary - 1))};
  if (ramp.low == ramp.high) ramp.high += 0.001;  // makes a step and avoids a division by zero
  return ramp;
}

}  // namespace

Status rope_table(const RopeScaling& s, int64_t rows, int64_t rotary, float* table) {
  SLUICE_TRY(check(s, rows, rotary, table));
  const int64_t half = rotary / 2;
  const bool stretched = s.factor > 1;
  const Ramp ramp = stretched ? ramp_of(s, rotary) : Ramp{0, 1};
  const double gain = s.attention_factor > 0 ? s.attention_factor : 0.1 * std::log(s.factor) + 1;
  for (int64_t i = 0; i < half; ++i) {
    const double plain = std::pow(s.theta, -static_cast<double>(i) / static_cast<double>(half));
    const double rotations = s.original_context * plain / (2 * std::numbers::pi);
    const double slowed =
        s.blend == RopeScaling::Blend::kRotations
            ? 1 - std::clamp((rotations - s.beta_slow) / (s.beta_fast - s.beta_slow), 0.0, 1.0)
            : std::clamp((static_cast<double>(i) - ramp.low) / (ramp.high - ramp.low), 0.0, 1.0);
    const double frequency = stretched ? plain / s.factor * slowed + plain * (1 - slowed) : plain;
    for (int64_t position = 0; position < rows; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      float* entry = table + (position * half + i) * 2;
      entry[0] = static_cast<float>(gain * std::cos(angle));
      entry[1] = static_cast<float>(gain * std::sin(angle));
    }
  }
  return {};
}

}  // namespace sluice
