// Start-up work on several threads.
#pragma once
#include <cstdint>
#include <functional>

namespace sluice {

// Calls f(i) once for each i from 0 to count - 1, on the caller and up to threads - 1 more threads, and returns when all are
// done. threads 0: one for each processor. f must not throw. Where the system has no more threads, fewer do the work.
void parallel_for(int threads, int64_t count, const std::function<void(int64_t)>& f);

}  // namespace sluice
