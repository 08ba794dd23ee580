#include "ops/top_logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/bounds.h"

namespace sluice {
namespace {

struct LogitsRow {
  std::vector<double> x;       // NaN replaced by -inf
  std::vector<int64_t> order;  // token ids, sorted
  double log_sum;              // NaN if no logprob is meaningful
};

LogitsRow row_of(const TopLogprobs::Problem& p, const Tensor& logits, int64_t row) {
  LogitsRow out;
  for (int64_t i = 0; i < p.vocab; ++i) {
    const double x = load2(logits, row, i);
    out.x.push_back(std::isnan(x) ? -kInfinity : x);
  }
  out.order.resize(out.x.size());
  std::iota(out.order.begin(), out.order.end(), 0);
  std::stable_sort(out.order.begin(), out.order.end(), [&](int64_t a, int64_t b) {
    return out.x[static_cast<size_t>(a)] > out.x[static_cast<size_t>(b)];
  });
  const double largest = out.x[static_cast<size_t>(out.order[0])];
  double sum = 0;
  for (const double x : out.x) sum += std::exp(x - largest);
  out.log_sum = std::isfinite(largest) ? largest + std::log(sum) : kNan;
  return out;
}

}  // namespace

Refusal TopLogprobs::validate(const Problem& p) {
  Refusal r;
  need_between(r, "rows", p.rows, 0, kRowsMax);
  need_between(r, "logit_rows", p.logit_rows, 0, kRowsMax);
  need_between(r, "vocab", p.vocab, 1, int64_t{1} << 24);
  need_between(r, "top", p.top, 0, 32);
  return r;
}

double TopLogprobs::bytes(const Problem& p) {
  return static_cast<double>(p.rows) * static_cast<double>(4 * p.vocab + 8 * p.top + 16);
}

Expectations reference(const TopLogprobs::Problem& p, const TopLogprobs::Args& a) {
  Expected logprob{.slot = "logprob", .value = {}, .bound = {}},
      rank{.slot = "rank", .value = {}, .bound = {}};
  Expected top_id{.slot = "top_id", .value = {}, .bound = {}};
  Expected top_logprob{.slot = "top_logprob", .value = {}, .bound = {}};
  const auto put = [](Expected* to, double value) {
    to->value.push_back(value);
    to->bound.push_back(std::isfinite(value) ? 0x1p-18 * (1 + std::abs(value)) : 0);
  };
  for (int64_t q = 0; q < p.rows; ++q) {
    const int64_t row = a.row.as<int32_t>()[q];
    const bool there = row >= 0 && row < p.logit_rows;
    const LogitsRow r = there ? row_of(p, a.logits, row) : LogitsRow{};
    const auto of = [&](int64_t id) { return r.x[static_cast<size_t>(id)] - r.log_sum; };
    const int64_t token = there ? a.token.as<int32_t>()[row] : -1;
    const bool known = token >= 0 && token < p.vocab;
    const auto place = std::find(r.order.begin(), r.order.end(), token) - r.order.begin();
    put(&logprob, known ? of(token) : kNan);
    rank.value.push_back(known ? static_cast<double>(place + 1) : 0);
    for (int64_t i = 0; i < p.top; ++i) {
      const int64_t id = there && i < p.vocab ? r.order[static_cast<size_t>(i)] : -1;
      top_id.value.push_back(static_cast<double>(id));
      put(&top_logprob, id < 0 ? kNan : of(id));
    }
  }
  if (p.top == 0) return {logprob, rank};
  return {logprob, rank, top_id, top_logprob};
}

}  // namespace sluice
