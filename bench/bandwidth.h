// How fast this machine reads memory: what weights that are read once a step are held against.
#pragma once
#include "dispatch/device.h"

namespace sluice::bench {

// Bytes a microsecond that the threads of `device` read from a block of it far over the last-level cache: the best run
// of two ways, with and without prefetching. A ceiling is what was seen to be possible, so not a median.
Result<double> read_bytes_per_us(Device& device);

}  // namespace sluice::bench
