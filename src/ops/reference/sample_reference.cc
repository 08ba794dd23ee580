#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"
#include "ops/sample.h"

namespace sluice {
namespace {

constexpr double kEdge = 0x1p-20;

struct Answer {
  int64_t token = 0;
  double logprob = kNan;
};
// The first is the exact result; the others are its neighbors across a threshold.
using Answers = std::vector<Answer>;

struct DrawRow {
  double temperature = 0, top_p = 1, min_p = 0;
  int64_t top_k = 0;
  double u = 0;
};

// How many tokens may be kept: the smallest, the exact and the largest number.
struct Kept {
  int64_t smallest, exact, largest;
};

// `p` descends and sums to 1; `running` are its running sums.
Kept kept_of(const DrawRow& row, const std::vector<double>& p, const std::vector<double>& running) {
  const auto count = static_cast<int64_t>(p.size());
  // The length of the shortest prefix whose sum reaches `target`, at least one.
  const auto reaches = [&](double target) {
    const auto at = std::lower_bound(running.begin(), running.end(), target) - running.begin();
    return std::min<int64_t>(at + 1, count);
  };
  // The number of tokens with p >= share * (largest p), at least one.
  const auto above = [&](double share) {
    int64_t n = 1;
    while (n < count && p[static_cast<size_t>(n)] >= share * p[0]) ++n;
    return n;
  };
  Kept kept{count, count, count};
  const auto cut = [&](int64_t smallest, int64_t exact, int64_t largest) {
    kept = {std::min(kept.smallest, smallest), std::min(kept.exact, exact), std::min(kept.largest, largest)};
  };
  if (row.top_p < 1) cut(reaches(row.top_p - kEdge), reaches(row.top_p), reaches(row.top_p + kEdge));
  if (row.min_p > 0) cut(above(row.min_p + kEdge), above(row.min_p), above(row.min_p - kEdge));
  return kept;
}

// Indices into p that may be sampled, the exact one first.
std::vector<int64_t> sampled(const DrawRow& row, std::vector<double> p) {
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= total;
  std::vector<double> running(p.size());
  std::partial_sum(p.begin(), p.end(), running.begin());
  const Kept kept = kept_of(row, p, running);
  // Among the first `count` tokens, the first one whose running sum exceeds `at` and whose probability is not zero.
  const auto first_beyond = [&](double at, int64_t count) {
    const auto i = std::upper_bound(running.begin(), running.begin() + count, at) - running.begin();
    int64_t token = std::min<int64_t>(i, count - 1);
    while (token > 0 && p[static_cast<size_t>(token)] == 0) --token;
    return token;
  };
  const auto mass = [&](int64_t count) { return running[static_cast<size_t>(count - 1)]; };
  std::vector<int64_t> out{first_beyond(row.u * mass(kept.exact), kept.exact)};
  for (int64_t count = kept.smallest; count <= kept.largest; ++count) {
    const int64_t low = first_beyond((row.u - kEdge) * mass(count), count);
    const int64_t high = first_beyond((row.u + kEdge) * mass(count), count);
    for (int64_t token = low; token <= high; ++token)
      if (p[static_cast<size_t>(token)] > 0) out.push_back(token);
  }
  std::sort(out.begin() + 1, out.end());
  out.erase(std::unique(out.begin() + 1, out.end()), out.end());
  return out;
}

Answers answers(const DrawRow& row, const std::vector<double>& logits) {
  std::vector<int64_t> order;
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > -kInfinity) order.push_back(static_cast<int64_t>(i));
  if (order.empty()) return {{}};
  const auto at = [&](int64_t id) { return logits[static_cast<size_t>(id)]; };
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return at(a) != at(b) ? at(a) > at(b) : a < b; });
  const double largest = at(order[0]);
  double total = 0;
  for (const int64_t id : order) total += std::exp(at(id) - largest);
  const auto answer = [&](int64_t id) { return Answer{id, at(id) - largest - std::log(total)}; };
  if (largest == kInfinity) return {{order[0], kNan}};
  if (!(row.temperature > 0)) return {answer(order[0])};
  if (row.top_k > 0) order.resize(static_cast<size_t>(std::min<int64_t>(row.top_k, std::ssize(order))));
  std::vector<double> p;
  for (const int64_t id : order) p.push_back(std::exp((at(id) - largest) / row.temperature));
  Answers out;
  for (const int64_t i : sampled(row, p)) out.push_back(answer(order[static_cast<size_t>(i)]));
  return out;
}

}  // namespace

Expectations reference(const Sample::Problem& p, const Sample::Args& a) {
  std::vector<Answers> rows;
  for (int64_t r = 0; r < p.rows; ++r) {
    std::vector<double> logits;
    for (int64_t i = 0; i < p.vocab; ++i) logits.push_back(load2(a.logits, r, i));
    if (p.greedy) {
      rows.push_back(answers({}, logits));
      continue;
    }
    const auto seed = static_cast<uint64_t>(a.seed.as<int64_t>()[r]);
    const auto step = static_cast<uint64_t>(a.step.as<int64_t>()[r]);
    rows.push_back(answers({.temperature = load(a.temperature, r),
                            .top_p = load(a.top_p, r),
                            .min_p = load(a.min_p, r),
                            .top_k = a.top_k.as<int32_t>()[r],
                            .u = uniform(seed, step)},
                           logits));
  }
  Expected token{.slot = "token", .value = {}, .bound = {}};
  Expected logprob{.slot = "logprob", .value = {}, .bound = {}};
  for (const Answers& row : rows) {
    token.value.push_back(static_cast<double>(row[0].token));
    logprob.value.push_back(row[0].logprob);
  }
  token.accept = [rows](size_t r, double got) {
    return std::any_of(rows[r].begin(), rows[r].end(),
                       [&](const Answer& x) { return got == static_cast<double>(x.token); });
  };
  logprob.accept = [rows](size_t r, double got) {
    return std::any_of(rows[r].begin(), rows[r].end(), [&](const Answer& x) {
      return std::isnan(x.logprob) ? std::isnan(got)
                                   : std::abs(got - x.logprob) <= 0x1p-18 * (1 + std::abs(x.logprob));
    });
  };
  return {token, logprob};
}

}  // namespace sluice
