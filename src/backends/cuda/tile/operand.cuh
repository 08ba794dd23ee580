// Eight adjacent values of a row: their load from global memory, and their conversion to operands.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

namespace sluice::cuda::tile {

// Eight values as they are in memory.
template <class T>
struct Eight {
  static constexpr int kWords = static_cast<int>(8 * sizeof(T) / 16);
  uint4 word[kWords];
};

// Loads weights, which are read once, so the loads do not allocate in L1. Zeros if `in` is false.
template <class T>
__device__ __forceinline__ void load_weights(Eight<T>& out, const T* p, bool in) {
#pragma unroll
  for (int i = 0; i < Eight<T>::kWords; ++i) {
    uint4& v = out.word[i];
    v = make_uint4(0, 0, 0, 0);
    asm volatile(
        "{\n"
        ".reg .pred in;\n"
        "setp.ne.u32 in, %5, 0;\n"
        "@in ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
        "}"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(reinterpret_cast<const uint4*>(p) + i), "r"(static_cast<uint32_t>(in))
        : "memory");
  }
}

// Loads one weight as raw bits, or zero if `in` is false. Convert it
// later by weight_value(): a conversion here would wait for the load.
template <class T>
__device__ __forceinline__ uint32_t load_weight(const T* p, bool in) {
  uint32_t bits = 0;
  if constexpr (sizeof(T) == 2) {
    asm volatile(
        "{\n"
        ".reg .pred in;\n"
        "setp.ne.u32 in, %2, 0;\n"
        "@in ld.global.u16 %0, [%1];\n"
        "}"
        : "+r"(bits)
        : "l"(p), "r"(static_cast<uint32_t>(in))
        : "memory");
  } else {
    asm volatile(
        "{\n"
        ".reg .pred in;\n"
        "setp.ne.u32 in, %2, 0;\n"
        "@in ld.global.u32 %0, [%1];\n"
        "}"
        : "+r"(bits)
        : "l"(p), "r"(static_cast<uint32_t>(in))
        : "memory");
  }
  return bits;
}
template <class T>
__device__ __forceinline__ float weight_value(uint32_t bits) {
  return __uint_as_float(sizeof(T) == 2 ? bits << 16 : bits);
}

// Loads values that a previous launch may have written, with ordinary loads in program order. Zeros if `in` is
// false. If `wide` is false (row strides that are not a multiple of 16 bytes), loads the elements one by one.
template <class T>
__device__ __forceinline__ void load_inputs(Eight<T>& out, const T* p, bool in, bool wide) {
#pragma unroll
  for (int i = 0; i < Eight<T>::kWords; ++i) {
    uint4& v = out.word[i];
    v = make_uint4(0, 0, 0, 0);
    if (wide) {
      asm volatile(
          "{\n"
          ".reg .pred in;\n"
          "setp.ne.u32 in, %5, 0;\n"
          "@in ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
          "}"
          : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
          : "l"(reinterpret_cast<const uint4*>(p) + i), "r"(static_cast<uint32_t>(in))
          : "memory");
    } else if (in) {
      constexpr int kEach = 16 / sizeof(T);
      alignas(16) T each[kEach];
#pragma unroll
      for (int k = 0; k < kEach; ++k) each[k] = p[i * kEach + k];
      v = *reinterpret_cast<const uint4*>(each);
    }
  }
}

__device__ __forceinline__ void to_floats(float (&out)[8], const Eight<__nv_bfloat16>& in) {
  const uint32_t words[4] = {in.word[0].x, in.word[0].y, in.word[0].z, in.word[0].w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __uint_as_float(words[i] << 16);
    out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}
__device__ __forceinline__ void to_floats(float (&out)[8], const Eight<float>& in) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    out[4 * i] = __uint_as_float(in.word[i].x);
    out[4 * i + 1] = __uint_as_float(in.word[i].y);
    out[4 * i + 2] = __uint_as_float(in.word[i].z);
    out[4 * i + 3] = __uint_as_float(in.word[i].w);
  }
}

// Multiplies x by `scale` and rounds the products to bf16. Returns the sum of squares of x before this.
__device__ __forceinline__ float scale_by(Eight<__nv_bfloat16>& x, const Eight<__nv_bfloat16>& scale) {
  uint32_t words[4] = {x.word[0].x, x.word[0].y, x.word[0].z, x.word[0].w};
  const uint32_t by[4] = {scale.word[0].x, scale.word[0].y, scale.word[0].z, scale.word[0].w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&words[i]));
    sum = fmaf(v.x, v.x, fmaf(v.y, v.y, sum));
    asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(words[i]) : "r"(by[i]));
  }
  x.word[0] = make_uint4(words[0], words[1], words[2], words[3]);
  return sum;
}

// Eight values as sums of bf16 terms, the largest term first: one term for bf16, three for f32. Three terms (8 bits each
// of the 24) are exact down to the smallest normal number. Two adjacent values share a word, the first in the low half.
template <class T>
struct Terms {
  static constexpr int kCount = sizeof(T) == 2 ? 1 : 3;
  uint32_t term[kCount][4];
};
__device__ __forceinline__ void to_terms(Terms<__nv_bfloat16>& out, const Eight<__nv_bfloat16>& in) {
  out.term[0][0] = in.word[0].x;
  out.term[0][1] = in.word[0].y;
  out.term[0][2] = in.word[0].z;
  out.term[0][3] = in.word[0].w;
}
// v minus its upper 16 bits as a float. 0 for infinity, NaN for NaN.
__device__ __forceinline__ float remainder_of(float v) {
  const uint32_t bits = __float_as_uint(v);
  const float left = v - __uint_as_float(bits & 0xffff0000u);
  return (bits << 1) == 0xff000000u ? 0.f : left;
}
__device__ __forceinline__ void to_terms(Terms<float>& out, const Eight<float>& in) {
  float v[8];
  to_floats(v, in);
#pragma unroll
  for (int t = 0; t < 3; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      out.term[t][i] = __byte_perm(__float_as_uint(v[2 * i]), __float_as_uint(v[2 * i + 1]), 0x7632);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = remainder_of(v[i]);
  }
}

}  // namespace sluice::cuda::tile
