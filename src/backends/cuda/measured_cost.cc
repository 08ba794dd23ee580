#include "backends/cuda/measured_cost.h"

#include <algorithm>
#include <cmath>

#include "dispatch/explain.h"

namespace sluice::cuda {
namespace {

// What a small kernel takes beside its bytes and products: launch, one dependent load, a reduction, a store.
constexpr double kLatencyUs = 1.2;

double roofline_us(double bytes, double flops, const DeviceInfo& d) {
  return kLatencyUs + std::max(bytes / d.mem_bytes_per_us, flops / d.bf16_flops_per_us);
}

double distance(const MeasuredCurve& c, const Work& w) {
  const auto away = [](int64_t a, int64_t b) {
    return std::abs(std::log(static_cast<double>(a) / static_cast<double>(b)));
  };
  return away(c.hidden, w.hidden) + away(c.experts, w.experts);
}

double at(const MeasuredCurve& curve, double tokens) {
  const auto& p = curve.points;
  if (p.size() == 1 || tokens <= static_cast<double>(p.front().tokens)) return p.front().us;
  size_t i = 1;
  while (i + 1 < p.size() && static_cast<double>(p[i].tokens) < tokens) ++i;
  const double x0 = std::log(static_cast<double>(p[i - 1].tokens)),
               x1 = std::log(static_cast<double>(p[i].tokens));
  const double t = (std::log(tokens) - x0) / (x1 - x0);
  // Beyond the last point the slope of the last two goes on, but never downwards.
  const double y0 = std::log(p[i - 1].us), y1 = t > 1 ? std::max(std::log(p[i].us), y0) : std::log(p[i].us);
  return std::exp(y0 + t * (y1 - y0));
}

}  // namespace

double measured_us(const std::vector<MeasuredCurve>& curves, const Work& work, const DeviceInfo& device) {
  const auto nearest = std::min_element(curves.begin(), curves.end(), [&](const auto& a, const auto& b) {
    return distance(a, work) < distance(b, work);
  });
  const double tokens = static_cast<double>(std::max<int64_t>(work.tokens, 1));
  const auto hidden = static_cast<double>(nearest->hidden), experts = static_cast<double>(nearest->experts);
  static const DeviceInfo measured_on = known_device("h200").value();
  const double theirs = roofline_us(2 * (tokens * hidden + experts * hidden + 2 * tokens * experts),
                                    2 * tokens * hidden * experts, measured_on);
  return at(*nearest, tokens) * roofline_us(work.bytes, work.flops, device) / theirs;
}

}  // namespace sluice::cuda
