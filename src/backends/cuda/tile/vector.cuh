// Loads and stores of a few adjacent bf16 or f32 elements as floats.
#pragma once
#include <cuda_bf16.h>

#include "base/dtype.h"

namespace sluice::cuda::tile {

template <DType>
struct ElementOf;
template <>
struct ElementOf<DType::kF32> {
  using Type = float;
};
template <>
struct ElementOf<DType::kBF16> {
  using Type = __nv_bfloat16;
};
// The device type of elements of type T.
template <DType T>
using Element = typename ElementOf<T>::Type;

__device__ __forceinline__ float to_f32(float value) { return value; }
__device__ __forceinline__ float to_f32(__nv_bfloat16 value) { return __bfloat162float(value); }
template <class T>
__device__ __forceinline__ T from_f32(float value) {
  if constexpr (sizeof(T) == 2) {
    return __float2bfloat16_rn(value);
  } else {
    return value;
  }
}

// Loads N elements with as few accesses of at most 16 bytes as possible. p must be aligned to N elements or to 16 bytes, whichever is less.
template <int N, class T>
__device__ __forceinline__ void load(float (&out)[N], const T* p) {
  constexpr int kBytes = N * static_cast<int>(sizeof(T)), kWord = kBytes < 16 ? kBytes : 16;
  struct alignas(kWord) Words {
    T element[N];
  };
  const Words words = *reinterpret_cast<const Words*>(p);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = to_f32(words.element[i]);
}
template <int N, class T>
__device__ __forceinline__ void store(T* p, const float (&values)[N]) {
  constexpr int kBytes = N * static_cast<int>(sizeof(T)), kWord = kBytes < 16 ? kBytes : 16;
  struct alignas(kWord) Words {
    T element[N];
  };
  Words words;
#pragma unroll
  for (int i = 0; i < N; ++i) words.element[i] = from_f32<T>(values[i]);
  *reinterpret_cast<Words*>(p) = words;
}

}  // namespace sluice::cuda::tile
