// Selects the compiled version of a function by the queue's device, not by a global variable.
// Include after hwy/highway.h, in the part of a kernel file that is compiled once (#if HWY_ONCE).
#pragma once
#include "backends/cpu/queue.h"

// SLUICE_SIMD(queue, function)(arguments...) calls a function that HWY_EXPORT has named in the same namespace.
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
#define SLUICE_SIMD(queue, function) ((void)(queue), (*(HWY_DISPATCH_TABLE(function)[0])))
#else
#define SLUICE_SIMD(queue, function) (*(HWY_DISPATCH_TABLE(function)[(queue).simd_index]))
#endif
