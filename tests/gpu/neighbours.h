// Kernels that stand before and behind a kernel under test in a chain, and lag.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>

namespace sluice::test {

// Enqueues a kernel that copies `bytes` bytes (a multiple of 4) after `lag_clocks` clocks of waiting. Dependent: it
// releases the next kernel at once, long before its own writes, and waits for the one in front before it reads or
// writes: the worst neighbour that the rules allow. Plain: an ordinary launch.
cudaError_t lagging_copy(void* to, const void* from, size_t bytes, long long lag_clocks, bool dependent,
                         cudaStream_t stream);

}  // namespace sluice::test
