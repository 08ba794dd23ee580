#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/route_topk.h"
#include "ops/score_math.h"

namespace sluice {
namespace {

using Problem = RouteTopk::Problem;
using Args = RouteTopk::Args;
constexpr double kF32Max = std::numeric_limits<float>::max();
// score_math.h flushes results below 1.04 * 2^-126; other functions may flush below 2^-126.
constexpr double kScoreFlush = 2 * kFlush;

// A number, and a bound on the error of f32 arithmetic.
struct Inexact {
  double value = 0, error = 0;
};

// The order of the choice: larger values first, NaN last, then lower indices.
bool before(float a, int64_t i, float b, int64_t j) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b) ? i < j : std::isnan(b);
  return a != b ? a > b : i < j;
}

std::vector<int64_t> best(const std::vector<float>& values, std::vector<int64_t> among, int64_t count) {
  std::sort(among.begin(), among.end(), [&](int64_t i, int64_t j) {
    return before(values[static_cast<size_t>(i)], i, values[static_cast<size_t>(j)], j);
  });
  among.resize(static_cast<size_t>(count));
  return among;
}

std::vector<int64_t> numbers(int64_t first, int64_t count) {
  std::vector<int64_t> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), first);
  return out;
}

// c of ops/route_topk.h.
std::vector<float> choice_scores(const Problem& p, const Args& a, int64_t t) {
  const auto score = routing_rule(p.method).score;
  std::vector<float> c;
  for (int64_t e = 0; e < p.experts; ++e) {
    float value = static_cast<float>(load2(a.logits, t, e));
    if (RouteTopk::chooses_by_score(p)) {
      value = score == RoutingRule::Score::kSigmoid ? score_sigmoid(value) : score_sqrt_softplus(value);
      if (p.bias) value += static_cast<float>(load(a.bias, e));
    }
    c.push_back(value);
  }
  return c;
}

// The experts of the eligible groups.
std::vector<int64_t> eligible(const Problem& p, const std::vector<float>& c) {
  const int64_t size = p.experts / p.groups;
  std::vector<float> rank;
  for (int64_t g = 0; g < p.groups; ++g) {
    const bool two = p.method == RoutingMethod::kDeepSeekV3 && size > 1;
    const auto top = best(c, numbers(g * size, size), two ? 2 : 1);
    float value = c[static_cast<size_t>(top[0])];
    if (two) value += c[static_cast<size_t>(top[1])];
    rank.push_back(value);
  }
  std::vector<int64_t> out;
  for (int64_t g : best(rank, numbers(0, p.groups), p.topk_groups))
    for (int64_t e : numbers(g * size, size)) out.push_back(e);
  return out;
}

// The chosen experts; -1 if there is none.
std::vector<int64_t> choose(const Problem& p, const Args& a, int64_t t) {
  const auto known = [&](double id) { return id >= 0 && id < static_cast<double>(p.experts); };
  std::vector<int64_t> ids;
  if (p.input == RoutingInput::kLogits && !routing_rule(p.method).by_hash) {
    const std::vector<float> c = choice_scores(p, a, t);
    return best(c, eligible(p, c), p.top_k);
  }
  for (int64_t k = 0; k < p.top_k; ++k) {
    double id = -1;
    if (p.input == RoutingInput::kPrecomputed) {
      id = load2(a.ids_in, t, k);
    } else if (p.input == RoutingInput::kPacked) {
      id = std::floor(load2(a.packed_in, t, k) / 65536);
    } else if (const int64_t token = a.token_ids.as<int32_t>()[t]; token >= 0 && token < p.vocab) {
      id = load2(a.hash_table, token, k);
    }
    ids.push_back(known(id) ? static_cast<int64_t>(id) : -1);
  }
  return ids;
}

Inexact within_ulps(double value, double ulps) {
  return {value, std::isfinite(value) ? ulps * 2 * kF32Eps * std::abs(value) + kScoreFlush : 0};
}
Inexact inexact_sigmoid(double x) { return within_ulps(1 / (1 + std::exp(-x)), kScoreUlps); }
Inexact sqrt_softplus(double x) {
  return within_ulps(std::sqrt(std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)))), kScoreUlps);
}

Inexact sum_of(const std::vector<Inexact>& terms) {
  Inexact sum;
  for (const Inexact& term : terms) sum.value += term.value, sum.error += term.error;
  sum.error += static_cast<double>(terms.size()) * kF32Eps * sum.value;
  return sum;
}

Inexact ratio(Inexact a, Inexact b) {
  const double value = a.value / b.value;
  if (!std::isfinite(value) || !std::isfinite(b.value)) return {value, 0};
  return {value, (a.error + value * b.error) / b.value + 3 * kF32Eps * value + kFlush};
}

std::vector<Inexact> softmax(const std::vector<double>& x) {
  double largest = -kInfinity;
  for (double v : x) largest = v > largest ? v : largest;
  std::vector<Inexact> out;
  for (double v : x) {
    // f32 rounds the difference (an error of |v - largest| * 2^-24 of the result); the exponential is off by up
    // to 4 ulp.
    const double away = std::min(std::abs(v - largest), 200.0);
    out.push_back(within_ulps(std::exp(v - largest), 4 + away));
  }
  const Inexact sum = sum_of(out);
  for (Inexact& e : out) e = ratio(e, sum);
  return out;
}

// The weights of the experts chosen for token t, before the scale.
std::vector<Inexact> weigh_logits(const Problem& p, const Args& a, int64_t t,
                                  const std::vector<int64_t>& ids) {
  const RoutingRule rule = routing_rule(p.method);
  std::vector<double> row, chosen;
  for (int64_t e = 0; e < p.experts; ++e) row.push_back(load2(a.logits, t, e));
  for (int64_t id : ids) chosen.push_back(id < 0 ? -kInfinity : row[static_cast<size_t>(id)]);
  if (rule.weigh == RoutingRule::Weigh::kSoftmaxChosen) return softmax(chosen);
  std::vector<Inexact> all, out;
  if (rule.score == RoutingRule::Score::kSoftmaxAll) all = softmax(row);
  for (size_t k = 0; k < ids.size(); ++k) {
    const double x = chosen[k];
    const bool to_sigmoid =
        rule.score == RoutingRule::Score::kSigmoid || rule.weigh == RoutingRule::Weigh::kSigmoid;
    if (ids[k] < 0) {
      out.push_back({});
    } else if (rule.score == RoutingRule::Score::kSoftmaxAll) {
      out.push_back(all[static_cast<size_t>(ids[k])]);
    } else if (to_sigmoid) {
      out.push_back(inexact_sigmoid(x));
    } else if (rule.score == RoutingRule::Score::kSqrtSoftplus) {
      out.push_back(sqrt_softplus(x));
    } else {
      out.push_back({x, 0});
    }
  }
  if (rule.weigh != RoutingRule::Weigh::kRenormalize) return out;
  Inexact sum = sum_of(out);
  sum.value += 1e-20;
  sum.error += 2 * kF32Eps * sum.value;
  for (Inexact& w : out) w = ratio(w, sum);
  return out;
}

std::vector<Inexact> weigh(const Problem& p, const Args& a, int64_t t, const std::vector<int64_t>& ids) {
  std::vector<Inexact> out;
  if (p.input == RoutingInput::kLogits) {
    out = weigh_logits(p, a, t, ids);
  } else {
    for (int64_t k = 0; k < p.top_k; ++k) {
      const bool none = ids[static_cast<size_t>(k)] < 0;
      double w = 0;
      if (!none && p.input == RoutingInput::kPrecomputed) w = load2(a.weights_in, t, k);
      if (!none && p.input == RoutingInput::kPacked) {
        const int32_t packed = a.packed_in.row<const int32_t>(t)[k];
        w = to_float(BF16{static_cast<uint16_t>(packed & 0xffff)});
      }
      out.push_back({w, 0});
    }
  }
  for (Inexact& w : out) {
    if (!p.scale_here) continue;
    w.value *= p.scale;
    // The scale is rounded to f32, and the product is rounded once.
    w.error = std::isinf(w.value) ? 0 : w.error * p.scale + 3 * kF32Eps * std::abs(w.value) + kFlush;
  }
  return out;
}

double scoped(const Problem& p, const Args& a, int64_t id) {
  if (id < 0) return -1;
  if (p.scope == ExpertScope::kMap) return std::max(load(a.expert_map, id), -1.0);
  if (p.scope == ExpertScope::kAll) return static_cast<double>(id);
  const int64_t local = id - p.expert_begin;
  return local >= 0 && local < p.expert_count ? static_cast<double>(local) : -1;
}

}  // namespace

Expectations reference(const Problem& p, const Args& a) {
  Expected ids{.slot = "ids", .value = {}, .bound = {}}, weights = ids, captured = ids;
  weights.slot = "weights";
  captured.slot = "captured";
  const auto emit = [&](double id, Inexact w) {
    ids.value.push_back(id);
    weights.value.push_back(w.value);
    const bool overflows = std::isfinite(w.value) && std::abs(w.value) + w.error > kF32Max;
    weights.bound.push_back(overflows ? kInfinity : w.error);
  };
  const int64_t first_shared = p.scope == ExpertScope::kRange ? p.expert_count : p.experts;
  const double shared_weight = p.scale_here ? 1 : 1 / p.scale;
  const int64_t valid = p.padded && p.tokens > 0 ? a.tokens_valid.as<int32_t>()[0] : p.tokens;
  for (int64_t t = 0; t < p.tokens; ++t) {
    const bool real = t < valid;
    const std::vector<int64_t> chosen = real ? choose(p, a, t) : std::vector<int64_t>();
    const std::vector<Inexact> w = real ? weigh(p, a, t, chosen) : std::vector<Inexact>();
    for (size_t k = 0; k < static_cast<size_t>(p.top_k); ++k) {
      emit(real ? scoped(p, a, chosen[k]) : -1, real ? w[k] : Inexact{});
      captured.value.push_back(real ? static_cast<double>(chosen[k]) : -1);
    }
    for (int64_t j = 0; j < p.shared_slots; ++j) {
      const Inexact one{shared_weight, half_ulp(DType::kF32, shared_weight)};
      emit(real ? static_cast<double>(first_shared + j) : -1, real ? one : Inexact{});
    }
  }
  Expectations out{ids, weights};
  if (p.capture) out.push_back(captured);
  return out;
}

}  // namespace sluice
