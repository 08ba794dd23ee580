#include "gpu/neighbours.h"

namespace sluice::test {
namespace {

constexpr int kThreads = 128;

__global__ void copy_late(uint32_t* to, const uint32_t* from, size_t words, long long lag_clocks) {
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const long long start = clock64();
  while (clock64() - start < lag_clocks) {
  }
  for (size_t i = blockIdx.x * kThreads + threadIdx.x; i < words; i += size_t{gridDim.x} * kThreads)
    to[i] = from[i];
}

__global__ void compare_and_forget(const uint32_t* wanted, uint32_t* got, size_t words, uint32_t* count) {
  uint32_t apart = 0;
  for (size_t i = blockIdx.x * kThreads + threadIdx.x; i < words; i += size_t{gridDim.x} * kThreads) {
    apart += wanted[i] != got[i];
    got[i] = kForgotten * 0x01010101u;
  }
  if (apart) atomicAdd(count, apart);
}

}  // namespace

cudaError_t lagging_copy(void* to, const void* from, size_t bytes, long long lag_clocks, bool dependent,
                         cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = {8, 1, 1};
  config.blockDim = {kThreads, 1, 1};
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  return cudaLaunchKernelEx(&config, copy_late, static_cast<uint32_t*>(to),
                            static_cast<const uint32_t*>(from), bytes / sizeof(uint32_t), lag_clocks);
}

cudaError_t compare_and_forget(const void* wanted, void* got, size_t bytes, uint32_t* count,
                               cudaStream_t stream) {
  compare_and_forget<<<256, kThreads, 0, stream>>>(
      static_cast<const uint32_t*>(wanted), static_cast<uint32_t*>(got), bytes / sizeof(uint32_t), count);
  return cudaGetLastError();
}

}  // namespace sluice::test
