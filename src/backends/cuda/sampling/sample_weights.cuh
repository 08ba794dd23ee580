// Weights of a row's tokens, relative to the largest: e^((logit - largest) / temperature) = 2^-depth.
//
// Relative error of a weight: a depth is a sum of two floats with an error below 2^-40 of the depth; ex2 adds up to
// 2^-22, and rounding to units 2^-22. A running sum divided by the total has at most half of that error, because it
// changes only if the errors above and below the target differ. That is well within the 2^-20 of ops/sample.h.
#pragma once
#include <cstdint>

namespace sluice::cuda::draw {

constexpr float kLog2E = 1.44269502f, kLn2 = .693147182f;
constexpr float kFar = 100.f;  // tokens of this depth or more have weight 0, whatever the rest of the row

struct Temper {
  float scale;         // a power of two that brings logits and the factor into range
  float top;           // the largest logit times scale
  float factor, rest;  // the sum factor + rest is log2(e) / temperature / scale
};

// Chooses the scale so that differences of scaled logits neither overflow nor underflow. A
// temperature so small that they would leaves weight only to equal logits, or to logits near zero.
__device__ __forceinline__ Temper temper_of(float largest, float temperature) {
  constexpr double kLog2EFull = 1.4426950408889634, kSteep = 0x1p60, kSteepest = 0x1p120;
  const double per_nat = kLog2EFull / static_cast<double>(temperature);
  const float scale = per_nat > kSteep && fabsf(largest) <= 0x1p40f ? 0x1p64f : 0x1p-2f;
  const double factor = fmin(per_nat / static_cast<double>(scale), kSteepest);
  const float high = static_cast<float>(factor);
  return {.scale = scale,
          .top = __fmul_rn(largest, scale),
          .factor = high,
          .rest = static_cast<float>(factor - static_cast<double>(high))};
}

// The depth without its low-order part. Never decreases as logits decrease. Infinite for -inf; NaN for NaN, which compares false.
__device__ __forceinline__ float depth_of(const Temper& t, float logit) {
  return __fmul_rn(__fsub_rn(t.top, __fmul_rn(logit, t.scale)), t.factor);
}

// The low-order part of the depth, which depth_of() rounds off. Valid only for depths below kFar.
__device__ __forceinline__ float rest_of_depth(const Temper& t, float logit, float depth) {
  const float x = __fmul_rn(logit, t.scale), d = __fsub_rn(t.top, x), back = __fsub_rn(d, t.top);
  const float lost = __fsub_rn(__fsub_rn(t.top, __fsub_rn(d, back)), __fadd_rn(x, back));
  return fmaf(lost, t.factor, fmaf(d, t.rest, fmaf(d, t.factor, -depth)));
}

__device__ __forceinline__ float power_of_two(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// 2^(binade - depth), where binade is an integer.
__device__ __forceinline__ float weight_of(const Temper& t, float logit, float depth, float binade) {
  const float weight = power_of_two(__fsub_rn(binade, depth));
  return fmaf(weight, rest_of_depth(t, logit, depth) * -kLn2, weight);
}

// Weights as integers, whose sum has the same bits in any order. They are added in halves of kHalfBits bits, so 32-bit sums hold 2^21 weights.
constexpr int kHalfBits = 11;
constexpr float kUnits = 0x1p22f - 0x1p12f;
__device__ __forceinline__ uint32_t units_of(const Temper& t, float logit, float depth) {
  return __float2uint_rn(weight_of(t, logit, depth, floorf(depth)) * kUnits);
}
// The weight of a unit in this binade (0 to kFar).
__device__ __forceinline__ double unit_at(int binade) {
  constexpr double kUnit = 1 / static_cast<double>(kUnits);
  return static_cast<double>(__uint_as_float(static_cast<uint32_t>(127 - binade) << 23)) * kUnit;
}

// The position of a token in sampling order, as an ascending number: larger logits first, then lower ids; -0 equals +0.
__device__ __forceinline__ uint64_t place_of(float logit, int id) {
  const uint32_t bits = __float_as_uint(__fadd_rn(logit, 0.f));
  const uint32_t ascending = bits ^ (bits >> 31 ? ~0u : 1u << 31);
  return (static_cast<uint64_t>(~ascending) << 32) | static_cast<uint32_t>(id);
}
__device__ __forceinline__ int id_at(uint64_t place) { return static_cast<int>(place); }
__device__ __forceinline__ float logit_at(uint64_t place) {
  const uint32_t ascending = ~static_cast<uint32_t>(place >> 32);
  return __uint_as_float(ascending ^ (ascending >> 31 ? 1u << 31 : ~0u));
}

// uniform() of base/random.h.
__device__ __forceinline__ double uniform_of(uint64_t seed, uint64_t counter) {
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0, c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1, c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  const uint64_t bits = (static_cast<uint64_t>(c0) << 32) | c1;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace sluice::cuda::draw
