#include "ops/norm_router_route.h"

#include <cmath>

namespace sluice {

Refusal NormRouterRoute::validate(const Problem& p) {
  Refusal r = RouterRoute::validate(p.router);
  r.append(RmsNorm::validate(norm(p)));
  return r;
}

double NormRouterRoute::bytes(const Problem& p) {
  const double read_again =
      static_cast<double>(bytes_of(p.router.x, p.router.route.tokens * p.router.hidden));
  return RouterRoute::bytes(p.router) + RmsNorm::bytes(norm(p)) - read_again;
}

namespace {

// What a row's sums of logits may be off by, beyond RouterGemm's bound on normed.
class OtherRounding {
 public:
  OtherRounding(const NormRouterRoute::Problem& p, const NormRouterRoute::Args& a, int64_t t)
      : p_(p), a_(a), t_(t) {
    double squares = 0;
    for (int64_t h = 0; h < p.router.hidden; ++h) squares += std::pow(load2(a.x, t, h), 2);
    squares_ = squares;
    inverse_ = 1 / std::sqrt(squares / static_cast<double>(p.router.hidden) + p.eps);
  }
  double of(int64_t expert) const {
    constexpr double kLargest = 0x1p127;
    if (squares_ > kLargest) return std::isfinite(squares_) ? kInfinity : 0;
    double sum = 0, before = 0, flushed = 0;
    for (int64_t h = 0; h < p_.router.hidden; ++h) {
      const double w = std::abs(load2(a_.w, expert, h)), n = std::abs(load2(a_.normed, t_, h)),
                   scale = std::abs(load(a_.norm_weight, h));
      sum += n * w;
      before += std::abs(load2(a_.x, t_, h)) * scale * w;
      flushed += kFlush * (inverse_ * (1 + scale) + 1) * (w + 1);
    }
    if (before > kLargest && std::isfinite(before)) return kInfinity;
    return std::isfinite(sum) ? 0x1p-7 * sum + flushed : 0;
  }

 private:
  const NormRouterRoute::Problem& p_;
  const NormRouterRoute::Args& a_;
  int64_t t_;
  double squares_ = 0, inverse_ = 0;
};

}  // namespace

Expectations reference(const NormRouterRoute::Problem& p, const NormRouterRoute::Args& a) {
  Expectations out = reference(NormRouterRoute::norm(p), NormRouterRoute::norm(a));
  out[0].slot = "normed";
  return out;
}

Expectations reference_given(const NormRouterRoute::Problem& p, const NormRouterRoute::Args& a) {
  Expectations out = reference_given(p.router, NormRouterRoute::router(a));
  Expectations logits = reference(p.router, NormRouterRoute::router(a));
  const int64_t experts = p.router.route.experts;
  for (int64_t t = 0; t < p.router.route.tokens; ++t) {
    const OtherRounding more(p, a, t);
    for (int64_t e = 0; e < experts; ++e) {
      const auto at = static_cast<size_t>(t * experts + e);
      double& bound = logits[0].bound[at];
      const double value = std::abs(logits[0].value[at]), wider = bound + more.of(e);
      bound =
          wider + (half_ulp(p.router.route.logits, value + wider) - half_ulp(p.router.route.logits, value));
    }
  }
  for (Expected& e : logits) out.push_back(std::move(e));
  return out;
}

}  // namespace sluice
