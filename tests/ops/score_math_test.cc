// The functions of ops/score_math.h: their distance from exact values, and that vectors give the same bits as
// scalars.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)  // the same targets as the library, whose dispatch tables are used
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/score_math_test.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/score.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

// All three functions of x[0..n); n is a multiple of 16.
void score_vectors(const float* x, int64_t n, float* e, float* sigmoid, float* softplus) {
  const F32 d;
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto v = hn::LoadU(d, x + i);
    hn::StoreU(exp_v(v), d, e + i);
    hn::StoreU(sigmoid_v(v), d, sigmoid + i);
    hn::StoreU(sqrt_softplus_v(v), d, softplus + i);
  }
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "harness/devices.h"

namespace sluice::cpu {
HWY_EXPORT(score_vectors);

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

// Every 1009th float, both signs, special values, and the neighbours of the points where a formula changes.
std::vector<float> samples() {
  std::vector<float> out = {0.f, -0.f, kInf, -kInf, kNan, -kNan, 1e-45f, -1e-45f, 3.4e38f, -3.4e38f};
  for (uint64_t bits = 0; bits < 0x7f800000u; bits += 1009)
    for (uint32_t sign : {0u, 0x80000000u})
      out.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits) | sign));
  for (float edge : {score::kExpLimit, 2 * score::kExpLimit, score::kSoftplusTail, 88.7f, 0.34657f})
    for (float x : {edge, -edge, std::nextafter(edge, kInf), std::nextafter(edge, -kInf),
                    -std::nextafter(edge, kInf), -std::nextafter(edge, -kInf)})
      out.push_back(x);
  while (out.size() % 16 != 0) out.push_back(1);
  return out;
}

double ulp(double value) { return std::ldexp(1.0, std::max(std::ilogb(value), -126) - 23); }

// The largest error in ulp. Around the smallest normal float and below, the contract allows zero or a normal
// float.
template <class Function, class Truth>
double worst_ulps(Function function, Truth truth, float* where) {
  double worst = 0;
  for (float x : samples()) {
    const double want = truth(static_cast<double>(x)), got = function(x);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(got));
      continue;
    }
    if (std::abs(want) < 0x1.1p-126) {
      EXPECT_TRUE(got == 0 || got >= 0x1p-126) << "subnormal for " << x;
      EXPECT_LE(got, 0x1.2p-126) << x;
      continue;
    }
    if (!std::isfinite(want)) {
      EXPECT_EQ(got, want) << x;
      continue;
    }
    const double distance = std::abs(got - want) / ulp(want);
    if (distance > worst) worst = distance, *where = x;
  }
  return worst;
}

double true_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double true_sqrt_softplus(double x) {
  return std::sqrt((x > 0 ? x : 0) + std::log1p(std::exp(-std::abs(x))));
}

TEST(ScoreMath, ErrorsAreWithinTheStatedUlps) {
  float where = 0;
  EXPECT_LE(worst_ulps(score_sigmoid, true_sigmoid, &where), kScoreUlps) << "at " << where;
  EXPECT_LE(worst_ulps(score_sqrt_softplus, true_sqrt_softplus, &where), kScoreUlps) << "at " << where;
  const auto clipped = [](double x) {
    return x > score::kExpLimit ? std::numeric_limits<double>::infinity() : std::exp(x);
  };
  EXPECT_LE(worst_ulps(score_exp, clipped, &where), 1.5) << "at " << where;
}

TEST(ScoreMath, KnowsItsLimits) {
  EXPECT_EQ(score_sigmoid(0.f), 0.5f);
  EXPECT_EQ(score_sigmoid(-kInf), 0.f);
  EXPECT_EQ(score_sigmoid(kInf), 1.f);
  EXPECT_EQ(score_sqrt_softplus(-kInf), 0.f);
  EXPECT_EQ(score_sqrt_softplus(kInf), kInf);
  EXPECT_EQ(score_exp(0.f), 1.f);
  EXPECT_EQ(score_sqrt_softplus(1e10f), 1e5f);
}

TEST(ScoreMath, ExpAndSigmoidNeverFallBetweenNeighbours) {
  for (float start : {-87.f, -40.f, -17.f, -3.f, -0.7f, -0.01f, 0.01f, 0.3f, 0.69f, 2.f, 9.f, 16.f}) {
    float x = start;
    for (int i = 0; i < 20000; ++i) {
      const float next = std::nextafter(x, kInf);
      ASSERT_LE(score_exp(x), score_exp(next)) << x;
      ASSERT_LE(score_sigmoid(x), score_sigmoid(next)) << x;
      const double fall = static_cast<double>(score_sqrt_softplus(x)) - score_sqrt_softplus(next);
      ASSERT_LE(fall, 2 * ulp(score_sqrt_softplus(x))) << x;
      x = next;
    }
  }
}

TEST(ScoreMath, VectorsGiveTheSameBits) {
  const std::vector<float> x = samples();
  std::vector<float> e(x.size()), sigmoid(x.size()), softplus(x.size());
  const auto same = [](float got, float want) {
    return std::isnan(want) ? std::isnan(got) : std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(want);
  };
  for (const auto& device : test::every_level(1)) {
    SLUICE_SIMD(queue_of(device->stream()), score_vectors)
    (x.data(), static_cast<int64_t>(x.size()), e.data(), sigmoid.data(), softplus.data());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_TRUE(same(e[i], score_exp(x[i]))) << text(device->info()) << " exp " << x[i];
      ASSERT_TRUE(same(sigmoid[i], score_sigmoid(x[i]))) << text(device->info()) << " sigmoid " << x[i];
      ASSERT_TRUE(same(softplus[i], score_sqrt_softplus(x[i])))
          << text(device->info()) << " softplus " << x[i];
    }
  }
}

}  // namespace
}  // namespace sluice::cpu
#endif  // HWY_ONCE
