// How often this process has called operator new: launch paths must not.
#pragma once
#include <cstdint>

namespace sluice::test {

int64_t allocations();

}  // namespace sluice::test
