/* Groups of devices, from C. The rules of sluice.h about errors, ownership and threads apply here, too. */
#ifndef SLUICE_GROUP_H_
#define SLUICE_GROUP_H_

#include "sluice/sluice.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Devices of one process that sum their rows with the operation "all_reduce_norm" (src/ops/all_reduce_norm.h). A launch
 * of the operation sums the rows of all ranks, adds the residual stream and normalizes the result. Plan the operation
 * with "ranks=2 ..." and run the plan on a stream of every device, in the same order on all devices. CPU devices work
 * during the call, so every rank needs a thread of its own. */
typedef struct sluice_group sluice_group;

/* Makes a group of `count` open devices (2 to 8) of one backend; a device's rank is its index. A device can be in only
 * one group. row_bytes: size of the largest exchanged row, at most 32768; 0 means 32768. SLUICE_UNSUPPORTED: a GPU
 * cannot access the memory of another GPU, which requires NVLink, or PCIe with peer access. */
SLUICE_API sluice_status sluice_group_create(sluice_device* const* devices, int32_t count, int64_t row_bytes,
                                             sluice_group** out, sluice_text* error);
/* Stops all exchanges of all ranks, even while they run, because `rank` failed. After that, sluice_wait() returns
 * SLUICE_DEVICE for every device, with a message such as "rank 1: WHY". Any thread may call this; only the first call counts. */
SLUICE_API void sluice_group_stop(sluice_group* group, int32_t rank, const char* why);
/* Returns SLUICE_OK, or, with a message, the error with which the group was stopped. */
SLUICE_API sluice_status sluice_group_status(const sluice_group* group, sluice_text* error);
/* Makes a stopped group usable again. No other thread may use the group's devices during the call. */
SLUICE_API sluice_status sluice_group_recover(sluice_group* group, sluice_text* error);
/* The group's devices must be idle and still open. */
SLUICE_API void sluice_group_destroy(sluice_group* group);

#ifdef __cplusplus
}
#endif

#endif /* SLUICE_GROUP_H_ */
