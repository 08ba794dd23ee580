// Chooses among the versions of a function that Highway compiled, by the queue's device and not by a global.
// Include after hwy/highway.h, in the part of a kernel file that is compiled once (#if HWY_ONCE).
#pragma once
#include "backends/cpu/queue.h"

// SLUICE_SIMD(queue, function)(arguments...); the function was named in HWY_EXPORT in the same namespace.
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
#define SLUICE_SIMD(queue, function) ((void)(queue), (*(HWY_DISPATCH_TABLE(function)[0])))
#else
#define SLUICE_SIMD(queue, function) (*(HWY_DISPATCH_TABLE(function)[(queue).simd_index]))
#endif
