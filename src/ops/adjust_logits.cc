#include "ops/adjust_logits.h"

#include <algorithm>
#include <cmath>

#include "ops/bounds.h"

namespace sluice {
namespace {

struct Adjusted {
  double x, magnitude;  // the bound is proportional to `magnitude`
};

double unless_nan(double value, double otherwise) { return std::isnan(value) ? otherwise : value; }

Adjusted adjusted(const AdjustLogits::Args& a, int64_t entry, int64_t row, double raw) {
  const double repetition = unless_nan(load(a.repetition, row), 1);
  const double bias = unless_nan(load(a.logit_bias, entry), 0);
  const int32_t count = a.count.as<int32_t>()[entry];
  double x = raw + bias, magnitude = std::abs(raw) + std::abs(bias);
  if (a.in_prompt.as<uint8_t>()[entry] != 0 || count > 0) {
    x = x > 0 ? x / repetition : x * repetition;
    magnitude *= std::max({1.0, repetition, 1 / repetition});
  }
  if (count > 0) {
    const double frequency = unless_nan(load(a.frequency, row), 0);
    const double presence = unless_nan(load(a.presence, row), 0);
    x -= frequency * count;
    x -= presence;
    magnitude += std::abs(frequency * count) + std::abs(presence);
  }
  return {x, magnitude};
}

}  // namespace

Refusal AdjustLogits::validate(const Problem& p) {
  Refusal r;
  need_between(r, "entries", p.entries, 0, kRowsMax);
  need_between(r, "rows", p.rows, 0, kRowsMax);
  need_between(r, "vocab", p.vocab, 1, int64_t{1} << 24);
  return r;
}

double AdjustLogits::bytes(const Problem& p) {
  return (p.way == AdjustWay::kApply ? 29.0 : 20.0) * static_cast<double>(p.entries);
}

Expectations reference(const AdjustLogits::Problem& p, const AdjustLogits::Args& a) {
  Expected logits{.slot = "logits", .value = {}, .bound = {}};
  for (int64_t r = 0; r < p.rows; ++r)
    for (int64_t i = 0; i < p.vocab; ++i) logits.value.push_back(load2(a.logits, r, i));
  logits.bound.resize(logits.value.size(), 0);
  const auto n = static_cast<size_t>(p.entries);
  Expected raw{
      .slot = "raw", .value = std::vector<double>(n), .bound = {}, .untouched = std::vector<uint8_t>(n, 1)};
  for (int64_t e = 0; e < p.entries; ++e) {
    const int64_t row = a.row.as<int32_t>()[e], id = a.id.as<int32_t>()[e];
    if (row < 0 || row >= p.rows || id < 0 || id >= p.vocab) continue;
    const auto place = static_cast<size_t>(row * p.vocab + id), entry = static_cast<size_t>(e);
    if (p.way == AdjustWay::kRestore) {
      logits.value[place] = load(a.raw, e);
      continue;
    }
    raw.value[entry] = logits.value[place], raw.untouched[entry] = 0;
    const Adjusted is = adjusted(a, e, row, logits.value[place]);
    logits.value[place] = is.x;
    logits.bound[place] = std::isfinite(is.magnitude) ? 0x1p-21 * is.magnitude + 4 * kFlush : 0;
  }
  if (p.way == AdjustWay::kRestore) return {logits};
  return {raw, logits};
}

}  // namespace sluice
