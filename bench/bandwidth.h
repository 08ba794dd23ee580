// The memory read rate of this machine: the reference for weights that are read once per step.
#pragma once
#include "dispatch/device.h"

namespace sluice::bench {

// The read rate of the threads of `device` in bytes per microsecond, over a block much larger than the last-level cache. Returns the best
// run, with or without prefetching, and not a median, because a ceiling is the highest rate observed.
Result<double> read_bytes_per_us(Device& device);

}  // namespace sluice::bench
