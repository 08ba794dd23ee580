#include "ops/mask_logits.h"

#include "ops/bounds.h"

namespace sluice {

Refusal MaskLogits::validate(const Problem& p) {
  Refusal r;
  need_between(r, "masks", p.masks, 0, kRowsMax);
  need_between(r, "rows", p.rows, 0, kRowsMax);
  need_between(r, "vocab", p.vocab, 1, int64_t{1} << 24);
  return r;
}

double MaskLogits::bytes(const Problem& p) {
  const bool apply = p.way == MaskWay::kApply;
  const double of_row = (apply ? 12.0 : 8.0) * static_cast<double>(p.vocab) +
                        (apply ? 4.0 * static_cast<double>(p.words()) : 0.0) + 4.0;
  return of_row * static_cast<double>(p.masks);
}

Expectations reference(const MaskLogits::Problem& p, const MaskLogits::Args& a) {
  Expected logits{.slot = "logits", .value = {}, .bound = {}};
  for (int64_t r = 0; r < p.rows; ++r)
    for (int64_t i = 0; i < p.vocab; ++i) logits.value.push_back(load2(a.logits, r, i));
  const auto n = static_cast<size_t>(p.masks * p.vocab);
  Expected raw{
      .slot = "raw", .value = std::vector<double>(n), .bound = {}, .untouched = std::vector<uint8_t>(n, 1)};
  for (int64_t m = 0; m < p.masks; ++m) {
    const int64_t row = a.row.as<int32_t>()[m];
    if (row < 0 || row >= p.rows) continue;
    for (int64_t i = 0; i < p.vocab; ++i) {
      double& x = logits.value[static_cast<size_t>(row * p.vocab + i)];
      if (p.way == MaskWay::kRestore) {
        x = load2(a.raw, m, i);
        continue;
      }
      const auto at = static_cast<size_t>(m * p.vocab + i);
      raw.value[at] = x, raw.untouched[at] = 0;
      const auto word = static_cast<uint32_t>(a.allowed.as<int32_t>()[m * p.words() + i / 32]);
      if ((word >> (i % 32) & 1) == 0) x = -kInfinity;
    }
  }
  if (p.way == MaskWay::kRestore) return {logits};
  return {raw, logits};
}

}  // namespace sluice
