// Counts this process's calls of operator new, because launch paths must not allocate.
#pragma once
#include <cstdint>

namespace sluice::test {

int64_t allocations();

}  // namespace sluice::test
