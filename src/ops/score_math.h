// The f32 functions behind a biased choice of experts, defined to the bit: the same bits on every backend.
//
// An expert is chosen by score + bias, and two scores may lie one rounding apart, so the score itself is part
// of the contract (ops/route_topk.h). Everything here is IEEE +, -, *, /, sqrt, comparisons and bit
// operations in the order written; no multiply-add may fuse (the build says -ffp-contract=off, device code
// uses the _rn intrinsics), and no result or intermediate that matters is subnormal, so that units which
// flush those to zero agree. backends/cpu/simd/score.h holds the same functions for vectors; a test compares
// the bits.
//
// Accuracy   measured on every float with 2^-9 < |x| < 192, in ulp: score_exp 1.1, score_sigmoid 2.5,
//            score_sqrt_softplus 2.0. kScoreUlps bounds all three.
// Monotone   score_exp and score_sigmoid never fall there; score_sqrt_softplus falls by up to 2 ulp between
//            one pair of neighbours in 160, so without a bias the logits choose and not the scores.
// Range      a result below 1.04 * 2^-126 is 0; score_exp above 87.3 is infinity. NaN gives NaN.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define SLUICE_HOST_DEVICE __host__ __device__
#else
#define SLUICE_HOST_DEVICE
#endif

namespace sluice {

constexpr double kScoreUlps = 3;

namespace score {

// exp(87.3) is below 2^126 and exp(-87.3) above 2^-126: in between neither it nor its reciprocal is
// subnormal.
constexpr float kExpLimit = 87.3f;
constexpr float kLog2E = 1.44269502f;
constexpr float kRound = 12582912.f;  // 1.5 * 2^23: x + kRound holds x rounded to an integer in its low bits
constexpr float kLn2High = .693359375f;  // ten bits: its products with the integers met here are exact
constexpr float kLn2Low = -2.12194440e-4f;
// (exp(r) - 1 - r) / r^2 on |r| <= ln(2) / 2, interpolated at Chebyshev's nodes: 8e-9 of exp(r).
constexpr float kExp[] = {.5f, .166665778f, .0416665561f, .00836317241f, .00139261759f};
// (atanh(s) / s - 1) / s^2 as a polynomial in s^2 on s <= 1/3, likewise.
constexpr float kAtanh[] = {.333333343f, .199998528f, .142961785f, .108532876f, .11612165f};

constexpr float kSoftplusTail = -18.f;  // exp(-18) / 2, what log(1 + z) / z lacks to 1, is 2^-27

#if defined(__CUDA_ARCH__)
__device__ inline float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float add(float a, float b) { return __fadd_rn(a, b); }
__device__ inline float div(float a, float b) { return __fdiv_rn(a, b); }
__device__ inline float root(float a) { return __fsqrt_rn(a); }
#else
SLUICE_HOST_DEVICE inline float mul(float a, float b) { return a * b; }
SLUICE_HOST_DEVICE inline float add(float a, float b) { return a + b; }
SLUICE_HOST_DEVICE inline float div(float a, float b) { return a / b; }
SLUICE_HOST_DEVICE inline float root(float a) { return std::sqrt(a); }
#endif
SLUICE_HOST_DEVICE inline float infinity() {
  const uint32_t bits = 0x7f800000u;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

}  // namespace score

// exp(x) = 2^n * exp(r), n the integer nearest to x / ln 2, r the rest.
SLUICE_HOST_DEVICE inline float score_exp(float x) {
  using namespace score;
  if (x < -kExpLimit) return 0.f;
  if (x > kExpLimit) return infinity();
  const float shifted = add(mul(x, kLog2E), kRound);
  const float n = add(shifted, -kRound);
  const float r = add(add(x, -mul(n, kLn2High)), -mul(n, kLn2Low));
  float q = add(mul(kExp[4], r), kExp[3]);
  q = add(mul(q, r), kExp[2]);
  q = add(mul(q, r), kExp[1]);
  q = add(mul(q, r), kExp[0]);
  const float p = add(add(mul(mul(q, r), r), r), 1.f);
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + 0x3f800000u;  // the integer in the low bits becomes the exponent
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return mul(p, power);
}

// 1 / (1 + exp(-x)). One formula for both signs: the quotient e / (1 + e) is not monotone in f32.
SLUICE_HOST_DEVICE inline float score_sigmoid(float x) {
  using namespace score;
  return div(1.f, add(1.f, score_exp(-x)));
}

// sqrt(log(1 + exp(x))) = sqrt(max(x, 0) + log(1 + z)) with z = exp(-|x|), and log(1 + z) = 2 atanh(z / (2 +
// z)). Far below zero log(1 + z) is z to the last bit, and exp(x / 2) keeps its digits where z has none left.
SLUICE_HOST_DEVICE inline float score_sqrt_softplus(float x) {
  using namespace score;
  if (x < kSoftplusTail) return score_exp(mul(x, .5f));
  const float z = score_exp(x > 0.f ? -x : x);
  const float s = div(z, add(z, 2.f));
  const float v = mul(s, s);
  float q = add(mul(kAtanh[4], v), kAtanh[3]);
  q = add(mul(q, v), kAtanh[2]);
  q = add(mul(q, v), kAtanh[1]);
  q = add(mul(q, v), kAtanh[0]);
  const float twice = add(s, s);
  const float log1p = add(mul(mul(q, v), twice), twice);
  return root(x > 0.f ? add(x, log1p) : log1p);
}

}  // namespace sluice
