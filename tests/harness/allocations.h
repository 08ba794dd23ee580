// Counts this process's calls of operator new. Launch paths must not allocate.
#pragma once
#include <cstdint>

namespace sluice::test {

int64_t allocations();

}  // namespace sluice::test
