// The memory read rate of this machine: the reference for weights that are read once per step.
#pragma once
#include "dispatch/device.h"

namespace sluice::bench {

// Bytes per microsecond that the threads of `device` read from a block much larger than the last-level cache: the best run of two ways,
// with and without prefetching. Not a median, because a ceiling is the highest rate that was observed.
Result<double> read_bytes_per_us(Device& device);

}  // namespace sluice::bench
