// Shared by the kernels of dense layers.
#pragma once
#include "backends/cuda/card.h"
#include "ops/linear.h"

namespace sluice::cuda {

// Adds the conditions of kernels on tensor cores whose weights are loaded by TMA.
inline void need_linear_operands(Refusal& r, const Linear::Problem& p, const DeviceInfo& d) {
  need_sm90(r, d);
  need_type(r, "x", p.x, DType::kBF16, "operand of tensor cores");
  need_type(r, "w", p.w, DType::kBF16, "operand of tensor cores");
  r.need(p.layout == WeightLayout::kRowMajor, "layout row_major (TMA boxes of rows)",
         "layout=" + std::string(word(p.layout)));
  need_multiple(r, "width", p.width, 8, "16-byte rows for TMA");
  r.need(!p.x_unaligned, "rows of x at multiples of 16 bytes (TMA)", "x_unaligned=1");
  r.need(p.width >= 128, "width >= 128 (shorter sums may miss their bound on tensor cores)", "width",
         p.width);
}

inline int64_t linear_parts(int64_t size, int64_t of) { return (size + of - 1) / of; }

// What differs between the descriptors of the kernels on tensor cores. Launcher: as for enqueue_config_of().
struct LinearCard {
  std::string_view name;
  Refusal (*supports)(const Linear::Problem&, const DeviceInfo&);
  std::vector<Config> (*configs)(const Linear::Problem&, const DeviceInfo&);
  std::string (*launch_text)(const Linear::Problem&, const KernelLaunch&);
  bool config_decides_bits = false;
};
template <class Launcher>
constexpr Candidate<Linear> linear_candidate(const LinearCard& card) {
  return {.name = card.name,
          .backend = Backend::kCuda,
          .supports = card.supports,
          .configs = card.configs,
          .enqueue_config = enqueue_config_of<Linear, Launcher>(),
          .launch_text = card.launch_text,
          .batch_invariant = true,
          .config_decides_bits = card.config_decides_bits,
          .alignment_bytes = 16,
          .planned = !kHasKernels};
}

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/tile/operand.cuh"
#include "backends/cuda/tile/vector.cuh"

namespace sluice::cuda {

// An element of an f32 or bf16 array as raw bits, so that no instruction waits for the
// load before value(). The load is in assembly, because the compiler waits for a load
// inside a branch at the end of the branch. The two loads have separate registers: loads
// to the same register would wait for each other, even if only one of them is executed.
struct RawElement {
  uint32_t half = 0, word = 0;  // the other one is zero

  __device__ __forceinline__ float value() const { return __uint_as_float(half << 16 | word); }
};
// Loads element `at`, or zero if `in` is false.
__device__ __forceinline__ RawElement load_raw(const void* array, int64_t at, bool f32, bool in) {
  RawElement raw;
  asm volatile(
      "{\n"
      ".reg .pred half, word;\n"
      "setp.eq.u32 half, %3, 2;\n"
      "setp.eq.u32 word, %3, 4;\n"
      "@half ld.global.u16 %0, [%2];\n"
      "@word ld.global.u32 %1, [%2];\n"
      "}"
      : "+r"(raw.half), "+r"(raw.word)
      : "l"(static_cast<const char*>(array) + at * (f32 ? 4 : 2)), "r"(in ? (f32 ? 4 : 2) : 0)
      : "memory");
  return raw;
}
// The same for four adjacent elements, which are one aligned vector: four words of f32, or two words of bf16 pairs.
__device__ __forceinline__ uint4 load_raw_four(const void* array, int64_t at, bool f32, bool in) {
  uint4 v = {};
  asm volatile(
      "{\n"
      ".reg .pred first, second;\n"
      "setp.ne.u32 first, %5, 0;\n"
      "setp.eq.u32 second, %5, 4;\n"
      "@first ld.global.v2.u32 {%0, %1}, [%4];\n"
      "@second ld.global.v2.u32 {%2, %3}, [%4 + 8];\n"
      "}"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(static_cast<const char*>(array) + at * (f32 ? 4 : 2)), "r"(in ? (f32 ? 4 : 2) : 0)
      : "memory");
  return v;
}
// The same for two adjacent elements: two words of f32, or a bf16 pair in the first word.
__device__ __forceinline__ uint2 load_raw_two(const void* array, int64_t at, bool f32, bool in) {
  uint2 v = {};
  asm volatile(
      "{\n"
      ".reg .pred first, second;\n"
      "setp.ne.u32 first, %3, 0;\n"
      "setp.eq.u32 second, %3, 4;\n"
      "@first ld.global.u32 %0, [%2];\n"
      "@second ld.global.u32 %1, [%2 + 4];\n"
      "}"
      : "+r"(v.x), "+r"(v.y)
      : "l"(static_cast<const char*>(array) + at * (f32 ? 4 : 2)), "r"(in ? (f32 ? 4 : 2) : 0)
      : "memory");
  return v;
}
__device__ __forceinline__ void add_raw_two(float (&to)[2], const uint2& raw, bool f32) {
  to[0] += __uint_as_float(f32 ? raw.x : raw.x << 16);
  to[1] += __uint_as_float(f32 ? raw.y : raw.x & 0xffff0000u);
}
__device__ __forceinline__ void add_raw_four(float (&to)[4], const uint4& raw, bool f32) {
  to[0] += __uint_as_float(f32 ? raw.x : raw.x << 16);
  to[1] += __uint_as_float(f32 ? raw.y : raw.x & 0xffff0000u);
  to[2] += __uint_as_float(f32 ? raw.z : raw.y << 16);
  to[3] += __uint_as_float(f32 ? raw.w : raw.y & 0xffff0000u);
}

// The operands of the epilogue: bias, residual and y.
struct LinearOutput {
  const void *bias, *residual;  // may be null
  void* y;
  int64_t residual_stride, y_stride;  // elements between rows
  int tokens, features;
  bool bias_f32;  // otherwise bf16
  bool y_f32;     // type of y and of the residual; otherwise bf16
  bool
      wide;  // four adjacent elements of y, and of the residual, are one aligned vector if the first is at a multiple of four

  // A bias as raw bits (tile::load_weight()). For kernels on tensor cores, whose biases are bf16 like their weights.
  __device__ __forceinline__ uint32_t raw_bias_of(int feature, bool in = true) const {
    return tile::load_weight(static_cast<const __nv_bfloat16*>(bias) + feature,
                             in && bias && feature < features);
  }
  __device__ __forceinline__ float bias_of(int feature) const {
    if (!bias || feature >= features) return 0.f;
    return bias_f32 ? static_cast<const float*>(bias)[feature]
                    : __bfloat162float(static_cast<const __nv_bfloat16*>(bias)[feature]);
  }
  __device__ __forceinline__ float residual_of(int64_t token, int feature) const {
    if (!residual || token >= tokens || feature >= features) return 0.f;
    const int64_t at = token * residual_stride + feature;
    return y_f32 ? static_cast<const float*>(residual)[at]
                 : __bfloat162float(static_cast<const __nv_bfloat16*>(residual)[at]);
  }
  __device__ __forceinline__ void store(int64_t token, int feature, float value) const {
    if (token >= tokens || feature >= features) return;
    const int64_t at = token * y_stride + feature;
    if (y_f32)
      static_cast<float*>(y)[at] = value;
    else
      static_cast<__nv_bfloat16*>(y)[at] = __float2bfloat16_rn(value);
  }
  // Stores two or four adjacent features of y as one vector. The token and the features must be in bounds.
  template <int N>
  __device__ __forceinline__ void store_together(int64_t token, int feature, const float (&value)[N]) const {
    const int64_t to = token * y_stride + feature;
    if (y_f32)
      tile::store(static_cast<float*>(y) + to, value);
    else
      tile::store(static_cast<__nv_bfloat16*>(y) + to, value);
  }
  // Stores sum + residual of four adjacent features to y, except features out of bounds.
  __device__ __forceinline__ void finish_four(int64_t token, int feature, const float (&sum)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) store(token, feature + i, sum[i] + residual_of(token, feature + i));
  }
};

// Biases of kCount features: groups of kTogether adjacent features, whose first features are kApart
// apart. They are loaded before the products of a tile, so that the epilogue does not wait for them.
template <int kCount, int kApart, int kTogether = 1>
struct RawBiases {
  uint32_t of[kCount];

  __device__ __forceinline__ RawBiases(const LinearOutput& out, int first) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) of[i] = out.raw_bias_of(first + i / kTogether * kApart + i % kTogether);
  }
  __device__ __forceinline__ float value(int i) const { return tile::weight_value<__nv_bfloat16>(of[i]); }
};

inline bool aligned_rows(const Tensor& t, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(bytes) == 0 &&
         bytes_of(t.dtype, t.stride[0]) % bytes == 0;
}

inline LinearOutput linear_output(const Linear::Problem& p, const Linear::Args& a) {
  const int64_t four = bytes_of(p.y, 4);
  return {.bias = p.bias ? a.bias.data : nullptr,
          .residual = p.residual ? a.residual.data : nullptr,
          .y = a.y.data,
          .residual_stride = p.residual ? a.residual.stride[0] : 0,
          .y_stride = a.y.stride[0],
          .tokens = static_cast<int>(p.tokens),
          .features = static_cast<int>(p.features),
          .bias_f32 = p.w == DType::kF32,
          .y_f32 = p.y == DType::kF32,
          .wide = aligned_rows(a.y, four) && (!p.residual || aligned_rows(a.residual, four))};
}

}  // namespace sluice::cuda
#endif
