// Kernels before and after a kernel under test: some lag, some check what it wrote.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace sluice::test {

// Enqueues a kernel that copies `bytes` bytes (a multiple of 4) after `lag_clocks` clocks of waiting. Dependent: it
// releases the next launch at once, long before its own writes, and waits for the previous one before it reads or
// writes: the worst neighbour that the rules allow. Plain: an ordinary launch.
cudaError_t lagging_copy(void* to, const void* from, size_t bytes, long long lag_clocks, bool dependent,
                         cudaStream_t stream);

// Enqueues a kernel, an ordinary launch, that adds to *count how many of `bytes` / 4 words of `got` differ from those of
// `wanted`, and fills them with bytes of kForgotten.
constexpr int kForgotten = 0xEE;
cudaError_t compare_and_forget(const void* wanted, void* got, size_t bytes, uint32_t* count,
                               cudaStream_t stream);

}  // namespace sluice::test
