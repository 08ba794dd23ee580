// Kernels that run before and after a kernel under test: some lag, some check its output.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace sluice::test {

// Enqueues a kernel that waits `lag_clocks` clocks and then copies `bytes` bytes (a multiple of 4).
// Dependent: it releases the next launch at once, long before its own writes, and waits for the previous
// launch before it reads or writes. This is the worst behaviour that the rules allow. Plain: an ordinary
// launch.
cudaError_t lagging_copy(void* to, const void* from, size_t bytes, long long lag_clocks, bool dependent,
                         cudaStream_t stream);

// Enqueues an ordinary launch that adds the number of differing words of `got` and `wanted` (`bytes` / 4
// words) to *count and then fills `got` with kForgotten.
constexpr int kForgotten = 0xEE;
cudaError_t compare_and_forget(const void* wanted, void* got, size_t bytes, uint32_t* count,
                               cudaStream_t stream);

}  // namespace sluice::test
