#include "backends/cuda/measured_cost.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace sluice::cuda {
namespace {

struct Point {
  int64_t tokens;
  double us;
};
constexpr size_t kPointsMax = 24;
struct Curve {
  std::string_view kernel;
  int64_t hidden, experts;
  Point point[kPointsMax];  // ascending; unused points have 0 tokens

  std::span<const Point> points() const {
    size_t n = 0;
    while (n < kPointsMax && point[n].tokens > 0) ++n;
    return {point, n};
  }
};
constexpr Curve kCurves[] = {
#define SLUICE_CURVE(kernel, hidden, experts, ...) {kernel, hidden, experts, {__VA_ARGS__}},
#include "backends/cuda/measured/router_gemm.inc"
#undef SLUICE_CURVE
};

// Fixed time of a small kernel: launch, one dependent load, a reduction, a store.
constexpr double kLatencyUs = 1.2;

// Rates of the H200 on which the curves were measured: bytes and flops per microsecond.
constexpr double kMemory = 4.60e6, kTensor = 703e6;

double roofline_us(double hidden, double experts, double tokens, double memory, double tensor) {
  const double bytes = 2 * (tokens * hidden + experts * hidden + 2 * tokens * experts);
  return kLatencyUs + std::max(bytes / memory, 2 * tokens * hidden * experts / tensor);
}

double distance(const Curve& c, const RouterGemm::Problem& p) {
  const auto away = [](int64_t a, int64_t b) {
    return std::abs(std::log(static_cast<double>(a) / static_cast<double>(b)));
  };
  return away(c.hidden, p.hidden) + away(c.experts, p.experts);
}

double at(std::span<const Point> p, double tokens) {
  if (p.size() == 1 || tokens <= static_cast<double>(p.front().tokens)) return p.front().us;
  size_t i = 1;
  while (i + 1 < p.size() && static_cast<double>(p[i].tokens) < tokens) ++i;
  const double x0 = std::log(static_cast<double>(p[i - 1].tokens)),
               x1 = std::log(static_cast<double>(p[i].tokens));
  const double t = (std::log(tokens) - x0) / (x1 - x0);
  // Beyond the last point, continues the slope of the last two points, but never downwards.
  const double y0 = std::log(p[i - 1].us), y1 = t > 1 ? std::max(std::log(p[i].us), y0) : std::log(p[i].us);
  return std::exp(y0 + t * (y1 - y0));
}

}  // namespace

double measured_us(std::string_view kernel, const RouterGemm::Problem& p, const DeviceInfo& device) {
  const Curve* nearest = nullptr;
  for (const Curve& c : kCurves)
    if (c.kernel == kernel && (!nearest || distance(c, p) < distance(*nearest, p))) nearest = &c;
  const double tokens = static_cast<double>(std::max<int64_t>(p.tokens, 1));
  const auto roofline = [&](int64_t hidden, int64_t experts, double memory, double tensor) {
    return roofline_us(static_cast<double>(hidden), static_cast<double>(experts), tokens, memory, tensor);
  };
  return at(nearest->points(), tokens) *
         roofline(p.hidden, p.experts, device.mem_bytes_per_us, device.bf16_flops_per_us) /
         roofline(nearest->hidden, nearest->experts, kMemory, kTensor);
}

}  // namespace sluice::cuda
