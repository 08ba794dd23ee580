// The f32 score functions for choosing experts with a bias, defined to the bit: every backend computes the same bits.
//
// An expert is chosen by score + bias, and two scores may be one rounding apart, so ops/route_topk.h prescribes the
// bits of the score. All functions here consist of IEEE +, -, *, /, sqrt, comparisons and bit
// operations in the order written. Multiply-adds must not be fused (the build sets -ffp-contract=off, device code uses
// the _rn intrinsics), and no result or intermediate that matters is subnormal, so that units that flush subnormals to
// zero agree. backends/cpu/simd/score.h holds the same functions vectorized; a test compares the bits.
//
// Accuracy   measured on every float with 2^-9 < |x| < 192, in ulp: score_exp 1.1, score_sigmoid 2.5,
//            score_sqrt_softplus 2.0. kScoreUlps bounds all three.
// Monotone   score_exp and score_sigmoid never decrease there; score_sqrt_softplus decreases by up to 2 ulp between one
//            in 160 pairs of neighboring floats, so without a bias experts are chosen by logits instead of scores.
// Range      a result below 1.04 * 2^-126 is 0; score_exp above 87.3 is infinity. NaN gives NaN.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace sluice {

constexpr double kScoreUlps = 3;

namespace score {

// exp(87.3) is below 2^126 and exp(-87.3) above 2^-126: in this range neither the result nor its reciprocal is subnormal.
constexpr float kExpLimit = 87.3f;
constexpr float kLog2E = 1.44269502f;
constexpr float kRound = 12582912.f;  // 1.5 * 2^23: x + kRound holds x rounded to an integer in its low bits
constexpr float kLn2High = .693359375f;  // ten bits: its products with the integers used here are exact
constexpr float kLn2Low = -2.12194440e-4f;
// (exp(r) - 1 - r) / r^2 on |r| <= ln(2) / 2, interpolated at Chebyshev nodes; the relative error of exp(r) is 8e-9.
constexpr float kExp[] = {.5f, .166665778f, .0416665561f, .00836317241f, .00139261759f};
// (atanh(s) / s - 1) / s^2 as a polynomial in s^2 on s <= 1/3, interpolated the same way.
constexpr float kAtanh[] = {.333333343f, .199998528f, .142961785f, .108532876f, .11612165f};

constexpr float kLargest = 3.40282347e38f;
constexpr float kSoftplusTail = -18.f;  // at this x, 1 - log(1 + z) / z is exp(-18) / 2, about 2^-27

SLUICE_HOST_DEVICE inline float infinity() {
  const uint32_t bits = 0x7f800000u;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

#if defined(__CUDA_ARCH__)
__device__ inline float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float add(float a, float b) { return __fadd_rn(a, b); }
// x < limit ? yes : no, as one select instruction. From a plain ?: the compiler makes a branch around the
// computation of `no`, and then the scores of several experts no longer overlap.
__device__ inline float if_below(float x, float limit, float yes, float no) {
  float out;
  asm("{ .reg .pred below; setp.lt.f32 below, %1, %2; selp.f32 %0, %3, %4, below; }"
      : "=f"(out)
      : "f"(x), "f"(limit), "f"(yes), "f"(no));
  return out;
}
// Rounded as IEEE requires for all inputs in this file, but without the branch of __frcp_rn and similar
// intrinsics for subnormals and numbers near the limits, which do not occur here or do not reach the result.
__device__ inline float near_reciprocal(float a) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return __fmaf_rn(r, __fmaf_rn(-a, r, 1.f), r);
}
__device__ inline float reciprocal(float a) { return if_below(kLargest, a, 0.f, near_reciprocal(a)); }
__device__ inline float div(float a, float b) {
  const float r = near_reciprocal(b), q = __fmul_rn(a, r), closer = __fmaf_rn(__fmaf_rn(-b, q, a), r, q);
  return __fmaf_rn(__fmaf_rn(-b, closer, a), r, closer);
}
__device__ inline float root(float a) {
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  const float s = __fmul_rn(a, r);
  return if_below(kLargest, a, a, __fmaf_rn(__fmaf_rn(-s, s, a), __fmul_rn(r, .5f), s));
}
#else
SLUICE_HOST_DEVICE inline float mul(float a, float b) { return a * b; }
SLUICE_HOST_DEVICE inline float add(float a, float b) { return a + b; }
SLUICE_HOST_DEVICE inline float if_below(float x, float limit, float yes, float no) {
  return x < limit ? yes : no;
}
SLUICE_HOST_DEVICE inline float div(float a, float b) { return a / b; }
SLUICE_HOST_DEVICE inline float near_reciprocal(float a) { return 1.f / a; }
SLUICE_HOST_DEVICE inline float reciprocal(float a) { return 1.f / a; }
SLUICE_HOST_DEVICE inline float root(float a) { return std::sqrt(a); }
#endif

}  // namespace score

namespace score {

// exp(x) = 2^n * exp(r), n the integer nearest to x / ln 2, r the remainder; for |x| <= kExpLimit, and NaN.
SLUICE_HOST_DEVICE inline float exp_inside(float x) {
  constexpr float c0 = kExp[0], c1 = kExp[1], c2 = kExp[2], c3 = kExp[3], c4 = kExp[4];
  const float shifted = add(mul(x, kLog2E), kRound);
  const float n = add(shifted, -kRound);
  const float r = add(add(x, -mul(n, kLn2High)), -mul(n, kLn2Low));
  float q = add(mul(c4, r), c3);
  q = add(mul(q, r), c2);
  q = add(mul(q, r), c1);
  q = add(mul(q, r), c0);
  const float p = add(add(mul(mul(q, r), r), r), 1.f);
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + 0x3f800000u;  // the integer in the low bits becomes the exponent
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return mul(p, power);
}

}  // namespace score

SLUICE_HOST_DEVICE inline float score_exp(float x) {
  using namespace score;
  return if_below(x, -kExpLimit, 0.f, if_below(kExpLimit, x, infinity(), exp_inside(x)));
}

// 1 / (1 + exp(-x)). The same formula for both signs, because e / (1 + e), the usual one for x < 0, is not monotone in f32.
SLUICE_HOST_DEVICE inline float score_sigmoid(float x) {
  using namespace score;
  const float e = if_below(-x, -kExpLimit, 0.f, exp_inside(-x));
  return if_below(kExpLimit, -x, 0.f, near_reciprocal(add(1.f, e)));  // 1 / infinity
}

// sqrt(log(1 + exp(x))) = sqrt(max(x, 0) + log(1 + z)) with z = exp(-|x|), and log(1 + z) = 2 atanh(z / (2
// + z)). Far below zero log(1 + z) equals z to the last bit, and the result is exp(x / 2), which stays
// accurate where z underflows.
SLUICE_HOST_DEVICE inline float score_sqrt_softplus(float x) {
  using namespace score;
  constexpr float c0 = kAtanh[0], c1 = kAtanh[1], c2 = kAtanh[2], c3 = kAtanh[3], c4 = kAtanh[4];
  const float z = score_exp(if_below(x, kSoftplusTail, mul(x, .5f), if_below(0.f, x, -x, x)));
  const float s = div(z, add(z, 2.f));
  const float v = mul(s, s);
  float q = add(mul(c4, v), c3);
  q = add(mul(q, v), c2);
  q = add(mul(q, v), c1);
  q = add(mul(q, v), c0);
  const float twice = add(s, s);
  const float log1p = add(mul(mul(q, v), twice), twice);
  return if_below(x, kSoftplusTail, z, root(if_below(0.f, x, add(x, log1p), log1p)));
}

}  // namespace sluice
