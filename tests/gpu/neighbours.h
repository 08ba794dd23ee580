// Kernels before and after a kernel under test: some lag, some check its output.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace sluice::test {

// Enqueues a kernel that copies `bytes` bytes (a multiple of 4) after it has waited `lag_clocks` clocks. Dependent: it releases
// the next launch at once, long before its own writes, and waits for the previous launch before it reads or writes, the worst
// neighbour that the rules allow. Plain: an ordinary launch.
cudaError_t lagging_copy(void* to, const void* from, size_t bytes, long long lag_clocks, bool dependent,
                         cudaStream_t stream);

// Enqueues an ordinary launch that adds to *count the number of `bytes` / 4 words of `got` that differ from `wanted`, and then fills `got`
// with bytes of kForgotten.
constexpr int kForgotten = 0xEE;
cudaError_t compare_and_forget(const void* wanted, void* got, size_t bytes, uint32_t* count,
                               cudaStream_t stream);

}  // namespace sluice::test
