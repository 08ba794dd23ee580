#include <algorithm>
#include <cmath>

#include "ops/attention.h"

namespace sluice {
namespace {

// One query: a row, a head, and the indices of the attended cache rows, below pages * kv_heads * page_size.
struct Query {
  int64_t row, head;
  std::vector<int64_t> cache_rows;
};

struct Scores {
  std::vector<double> score;
  double largest = -kInfinity;  // includes the sink
  double magnitude = 0;         // S of ops/attention.h
  double flushed = 0;           // error of one score from numbers below the smallest normal
  bool has_nan = false;
};

Scores scores_of(const Attention::Problem& p, const Attention::Args& a, const Query& query) {
  Scores out;
  for (const int64_t cache_row : query.cache_rows) {
    double sum = 0, magnitude = 0, flushed = 0;
    for (int64_t d = 0; d < p.head_dim; ++d) {
      const double q = load2(a.q, query.row, query.head * p.head_dim + d);
      const double k = load(a.k_cache, cache_row * p.head_dim + d);
      sum += q * k;
      if (!std::isfinite(q * k)) continue;
      magnitude += std::abs(q * k);
      flushed += kFlush * (std::abs(q) + std::abs(k) + 1);
    }
    out.score.push_back(p.scale * sum);
    out.has_nan |= std::isnan(sum);
    out.largest = std::fmax(out.largest, p.scale * sum);
    out.magnitude = std::max(out.magnitude, p.scale * magnitude);
    out.flushed = std::max(out.flushed, p.scale * flushed + kFlush);
  }
  if (!p.sinks) return out;
  const double sink = load(a.sinks, query.head);
  out.has_nan |= std::isnan(sink);
  out.largest = std::fmax(out.largest, sink);
  if (std::isfinite(sink)) out.magnitude = std::max(out.magnitude, std::abs(sink));
  return out;
}

// Appends the head_dim elements of one query.
void attend(const Attention::Problem& p, const Attention::Args& a, const Query& query, Expected* y) {
  const Scores s = scores_of(p, a, query);
  if (s.largest == -kInfinity && !s.has_nan) {
    y->value.insert(y->value.end(), static_cast<size_t>(p.head_dim), 0);
    y->bound.insert(y->bound.end(), static_cast<size_t>(p.head_dim), 0);
    return;
  }
  std::vector<double> weight;
  const double sink = p.sinks ? std::exp(load(a.sinks, query.head) - s.largest) : 0;
  double weights = 0, smallest = 1;
  for (const double score : s.score) {
    weight.push_back(std::exp(score - s.largest));
    weights += weight.back();
    if (weight.back() > 0) smallest = std::min(smallest, weight.back());
  }
  const double total = weights + sink;
  const auto n = static_cast<double>(weight.size());
  const double off = std::exp(2 * (static_cast<double>(p.head_dim + 16) * kF32Eps * s.magnitude + s.flushed));
  const double rounded = p.q == DType::kBF16 ? 0x1p-8 * off : 0;
  const double relative = off - 1 + (2 * n + 32) * kF32Eps * off + rounded;
  const double least_step = p.cache == CacheType::kE4M3 ? 0x1p-40 : 0x1p-100;
  const double stepped = p.q == DType::kBF16 ? least_step * off : 0;
  for (int64_t d = 0; d < p.head_dim; ++d) {
    double sum = 0, magnitude = 0, flushed = 0, values = 0;
    for (size_t j = 0; j < weight.size(); ++j) {
      const double v = load(a.v_cache, query.cache_rows[j] * p.head_dim + d);
      sum += weight[j] * v;
      magnitude += weight[j] * std::abs(v);
      values += std::abs(v);
      flushed += kFlush * (std::abs(v) + 2);
    }
    const double value = sum / total;
    // A kernel may round a very small weight to zero, and zero times an infinite value is NaN.
    const bool certain = !std::isfinite(value) && std::isfinite(off) && smallest > 0x1p-100;
    y->value.push_back(value);
    y->bound.push_back(
        certain ? 0
                : (relative * magnitude + rounded * std::abs(value) * weights + stepped * values) / total +
                      off * flushed + half_ulp(p.q, value));
  }
}

// Returns the sequence that owns a row; -1: none.
int64_t owner(const Attention::Problem& p, const Attention::Args& a, int64_t row) {
  const auto* begin = a.q_begin.as<int32_t>();
  for (int64_t s = 0; s < p.sequences; ++s)
    if (row >= begin[s] && row < begin[s + 1]) return s;
  return -1;
}

}  // namespace

Expectations reference(const Attention::Problem& p, const Attention::Args& a) {
  Expected y{.slot = "y", .value = {}, .bound = {}};
  for (int64_t row = 0; row < p.tokens; ++row) {
    const int64_t s = owner(p, a, row);
    const auto row_elements = static_cast<size_t>(p.heads * p.head_dim);
    y.untouched.insert(y.untouched.end(), row_elements, s < 0);
    if (s < 0) {
      y.value.insert(y.value.end(), row_elements, 0);
      y.bound.insert(y.bound.end(), row_elements, 0);
      continue;
    }
    const int64_t position = a.kv_len.as<int32_t>()[s] - (a.q_begin.as<int32_t>()[s + 1] - row);
    const int64_t last = std::min(position, p.pages_per_seq * p.page_size - 1);
    const int64_t first = p.window > 0 ? std::max<int64_t>(0, position - p.window + 1) : 0;
    for (int64_t head = 0; head < p.heads; ++head) {
      Query query{row, head, {}};
      for (int64_t j = first; j <= last; ++j) {
        const int64_t page = a.page_table.as<int32_t>()[s * p.pages_per_seq + j / p.page_size];
        if (page < 0 || page >= p.pages) continue;
        const int64_t kv_head = head / (p.heads / p.kv_heads);
        query.cache_rows.push_back((page * p.kv_heads + kv_head) * p.page_size + j % p.page_size);
      }
      attend(p, a, query, &y);
    }
  }
  return {y};
}

}  // namespace sluice
