#include "ops/fused/linear_argmax.h"

#include <algorithm>
#include <cmath>

namespace sluice {

Refusal LinearArgmax::validate(const Problem& p) { return Linear::validate(linear(p)); }

double LinearArgmax::bytes(const Problem& p) {
  return static_cast<double>(bytes_of(p.w, p.features * p.width)) +
         static_cast<double>(bytes_of(p.x, p.tokens * p.width));
}

namespace {

// The results that ops/fused/linear_argmax.h allows for one row of logits.
struct ArgmaxRow {
  bool anything = false;            // a logit may overflow, so any result is right
  int64_t token = 0;                // token of the exact logits
  double logprob = kNan;            // logprob of that token
  std::vector<double> logits = {};  // -inf for NaN
  std::vector<double> bound = {};   // bound of each logit
  double log_sum = 0, bound_max = 0;

  bool may_be(int64_t n) const {
    if (std::isnan(logprob)) return n == token;
    const auto at = static_cast<size_t>(n), best = static_cast<size_t>(token);
    // True unless the logit of `token` is certainly larger.
    return logits[at] + bound[at] >= logits[best] - bound[best];
  }
  bool may_be_logprob(double got) const {
    if (std::isnan(logprob)) return std::isnan(got);
    for (size_t n = 0; n < logits.size(); ++n) {
      const double want = logits[n] - log_sum;
      if (may_be(static_cast<int64_t>(n)) &&
          std::abs(got - want) <= 0x1p-18 * (1 + std::abs(want)) + bound[n] + bound_max)
        return true;
    }
    return false;
  }
};

ArgmaxRow argmax_row(const Expected& y, int64_t row, int64_t features) {
  ArgmaxRow out;
  for (int64_t n = 0; n < features; ++n) {
    const auto at = static_cast<size_t>(row * features + n);
    const double logit = std::isnan(y.value[at]) ? -kInfinity : y.value[at];
    out.anything |= std::isinf(y.bound[at]);
    out.logits.push_back(logit);
    out.bound.push_back(y.bound[at]);
    if (std::isfinite(logit)) out.bound_max = std::max(out.bound_max, y.bound[at]);
  }
  const auto best = std::ranges::max_element(out.logits);  // the first among equals
  if (*best == -kInfinity) return out;
  out.token = best - out.logits.begin();
  if (*best == kInfinity) return out;
  double sum = 0;
  for (const double logit : out.logits) sum += std::exp(logit - *best);
  out.log_sum = *best + std::log(sum);
  out.logprob = *best - out.log_sum;
  return out;
}

}  // namespace

Expectations reference(const LinearArgmax::Problem& p, const LinearArgmax::Args& a) {
  const Expectations logits = reference(LinearArgmax::linear(p), LinearArgmax::linear(a, {}));
  std::vector<ArgmaxRow> rows;
  for (int64_t t = 0; t < p.tokens; ++t) rows.push_back(argmax_row(logits[0], t, p.features));
  Expected token{.slot = "token", .value = {}, .bound = {}};
  Expected logprob{.slot = "logprob", .value = {}, .bound = {}};
  for (const ArgmaxRow& row : rows) {
    token.value.push_back(static_cast<double>(row.token));
    logprob.value.push_back(row.logprob);
  }
  token.accept = [rows](size_t t, double got) {
    const auto n = static_cast<int64_t>(got);
    return n >= 0 && n < std::ssize(rows[t].logits) && (rows[t].anything || rows[t].may_be(n));
  };
  logprob.accept = [rows](size_t t, double got) { return rows[t].anything || rows[t].may_be_logprob(got); };
  return {token, logprob};
}

}  // namespace sluice
