#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/latent_attention.h"

namespace sluice {
namespace {

constexpr double kLargestF32 = std::numeric_limits<float>::max(), kLargestBF16 = 0x1.fep127;
constexpr double kBF16Eps = 0x1p-9;  // unit roundoff

// A sum, the sum of its terms' magnitudes, and its errors from flushing to zero and rounding to bf16.
struct Sum {
  double value = 0, magnitude = 0, flushed = 0, rounded = 0;
};

// One query: a row, a head, and the indices of the attended cache rows, below pages * page_size.
struct LatentQuery {
  int64_t row, head;
  std::vector<int64_t> cache_rows;
};

class Head {
 public:
  Head(const LatentAttention::Problem& p, const LatentAttention::Args& a, const LatentQuery& query)
      : p_(p), a_(a), query_(query) {}

  // Appends the v_dim elements of the query.
  void attend(Expected* y) {
    if (query_.cache_rows.empty()) return append(y, std::vector<Sum>(static_cast<size_t>(p_.v_dim)), 0);
    const std::vector<Sum> query = absorbed();
    double largest = -kInfinity, magnitude_max = 0, flushed = 0, rounded = 0;
    std::vector<double> score;
    for (const int64_t row : query_.cache_rows) {
      const Sum s = score_of(query, row);
      score.push_back(s.value);
      largest = std::fmax(largest, s.value);
      magnitude_max = std::max(magnitude_max, s.magnitude), flushed = std::max(flushed, s.flushed);
      rounded = std::max(rounded, s.rounded);
    }
    double total = 0;
    for (double& s : score) total += s = std::exp(s - largest);
    const auto terms = static_cast<double>(p_.nope + p_.rank + p_.rope + 24);
    const double off = std::exp(2 * (terms * kF32Eps * magnitude_max + flushed + rounded));
    const double added =
        (3 * static_cast<double>(score.size()) + static_cast<double>(p_.rank) + 40) * kF32Eps;
    const double relative = off - 1 + (added + (1 + eps_) * (1 + eps_) - 1) * off;
    std::vector<Sum> out = weighed(score, total);
    for (Sum& s : out) s.magnitude = relative * s.magnitude + off * s.flushed;
    append(y, out, unspecified_ ? kInfinity : 1);
  }

 private:
  double number(double value) {
    unspecified_ |= std::isinf(value);
    return value;
  }
  void limit(double magnitude) {
    unspecified_ |= magnitude > (p_.q == DType::kBF16 ? kLargestBF16 : kLargestF32);
  }
  double weight(int64_t row, int64_t k) {
    const int64_t rows = p_.nope + p_.v_dim;
    return number(load(a_.kv_b, (query_.head * rows + row) * p_.rank + k));
  }
  double cached(int64_t row, int64_t i) { return number(load(a_.cache, row * (p_.rank + p_.rope) + i)); }
  double query(int64_t i) { return number(load2(a_.q, query_.row, query_.head * (p_.nope + p_.rope) + i)); }

  // The vector that multiplies a cache row: a K_h, then b.
  std::vector<Sum> absorbed() {
    std::vector<Sum> out;
    for (int64_t k = 0; k < p_.rank; ++k) {
      Sum s;
      for (int64_t i = 0; i < p_.nope; ++i) {
        const double a = query(i), w = weight(i, k);
        s.value += a * w, s.magnitude += std::abs(a * w);
        s.flushed += kFlush * (std::abs(a) + std::abs(w) + 1);
      }
      limit(s.magnitude);
      s.rounded = eps_ * std::abs(s.value);
      out.push_back(s);
    }
    for (int64_t i = 0; i < p_.rope; ++i) {
      const double b = query(p_.nope + i);
      out.push_back({b, std::abs(b), kFlush, 0});
    }
    return out;
  }

  Sum score_of(const std::vector<Sum>& query, int64_t row) {
    Sum s;
    for (size_t k = 0; k < query.size(); ++k) {
      const double c = cached(row, static_cast<int64_t>(k));
      s.value += query[k].value * c;
      s.magnitude += query[k].magnitude * std::abs(c);
      s.flushed += query[k].flushed * std::abs(c) + kFlush * (query[k].magnitude + 1);
      s.rounded += query[k].rounded * std::abs(c);
    }
    limit(s.magnitude), limit(p_.scale * s.magnitude);
    return {p_.scale * s.value, p_.scale * s.magnitude, p_.scale * s.flushed + kFlush, p_.scale * s.rounded};
  }

  // V_h times the weighted mean of the latents.
  std::vector<Sum> weighed(const std::vector<double>& weights, double total) {
    std::vector<Sum> mean;
    for (int64_t k = 0; k < p_.rank; ++k) {
      Sum s;
      for (size_t j = 0; j < weights.size(); ++j) {
        const double c = cached(query_.cache_rows[j], k);
        s.value += weights[j] * c, s.magnitude += weights[j] * std::abs(c);
        s.flushed += kFlush * (std::abs(c) + 2);
      }
      limit(s.magnitude);
      mean.push_back({s.value / total, s.magnitude / total, s.flushed, 0});
    }
    std::vector<Sum> out;
    for (int64_t d = 0; d < p_.v_dim; ++d) {
      Sum s;
      for (int64_t k = 0; k < p_.rank; ++k) {
        const Sum& m = mean[static_cast<size_t>(k)];
        const double w = weight(p_.nope + d, k);
        s.value += w * m.value, s.magnitude += std::abs(w) * m.magnitude;
        s.flushed += std::abs(w) * m.flushed + kFlush * (m.magnitude + std::abs(w) + 1);
      }
      // Kernels divide by the sum of the weights at the end, so the undivided sum must not overflow.
      limit(s.magnitude * total);
      out.push_back(s);
    }
    return out;
  }

  // `scale` multiplies the bounds in `magnitude`: 0 if the result is exact, infinity if it is unspecified.
  void append(Expected* y, const std::vector<Sum>& out, double scale) const {
    for (const Sum& s : out) {
      // Unspecified: any number or NaN.
      y->value.push_back(scale == kInfinity ? 0 : s.value);
      y->bound.push_back(scale == kInfinity ? kInfinity : scale * (s.magnitude + half_ulp(p_.q, s.value)));
    }
  }

  const LatentAttention::Problem& p_;
  const LatentAttention::Args& a_;
  const LatentQuery& query_;
  // The relative error of rounding a', a weight or a sum of weighted rows to bf16.
  const double eps_ = p_.q == DType::kBF16 ? kBF16Eps : 0;
  bool unspecified_ = false;
};

}  // namespace

Expectations reference(const LatentAttention::Problem& p, const LatentAttention::Args& a) {
  Expected y{.slot = "y", .value = {}, .bound = {}};
  const auto* begin = a.q_begin.as<int32_t>();
  for (int64_t row = 0; row < p.tokens; ++row) {
    int64_t s = 0;
    while (s < p.sequences && !(row >= begin[s] && row < begin[s + 1])) ++s;
    const bool nobody = s == p.sequences;
    y.untouched.insert(y.untouched.end(), static_cast<size_t>(p.heads * p.v_dim), nobody);
    if (nobody) {
      y.value.resize(y.untouched.size());
      y.bound.resize(y.untouched.size());
      continue;
    }
    const int64_t position = a.kv_len.as<int32_t>()[s] - (begin[s + 1] - row);
    const int64_t last = std::min(position, p.pages_per_seq * p.page_size - 1);
    for (int64_t head = 0; head < p.heads; ++head) {
      LatentQuery query{row, head, {}};
      for (int64_t j = 0; j <= last; ++j) {
        const int64_t page = a.page_table.as<int32_t>()[s * p.pages_per_seq + j / p.page_size];
        if (page >= 0 && page < p.pages) query.cache_rows.push_back(page * p.page_size + j % p.page_size);
      }
      Head(p, a, query).attend(&y);
    }
  }
  return {y};
}

}  // namespace sluice
