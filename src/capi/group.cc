#include <algorithm>
#include <string>

#include "backends/backends.h"
#include "capi/handles.h"
#include "ops/all_reduce_norm.h"

using namespace sluice;        // NOLINT: the C boundary names every type of the library
using namespace sluice::capi;  // NOLINT

extern "C" {

sluice_status sluice_group_create(sluice_device* const* devices, int32_t count, int64_t row_bytes,
                                  sluice_group** out, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(devices, "devices"));
    SLUICE_TRY(need_pointer(out, "out"));
    if (count < 2 || count > AllReduceNorm::kRanksMax)
      return invalid("count: wanted 2 to " + std::to_string(AllReduceNorm::kRanksMax) + " devices, found " +
                     std::to_string(count));
    std::vector<Device*> ranks;
    for (int32_t rank = 0; rank < count; ++rank) {
      SLUICE_TRY(need_pointer(devices[rank], "devices"));
      ranks.push_back(devices[rank]->device.get());
    }
    GroupOptions options;
    if (row_bytes != 0) options.row_bytes = row_bytes;
    auto handle = std::make_unique<sluice_group>();
    auto made = make_group(ranks, options);
    if (!made.ok()) return made.status();
    handle->group = std::move(made).value();
    *out = handle.release();
    return {};
  });
}

void sluice_group_stop(sluice_group* group, int32_t rank, const char* why) {
  if (!group) return;
  (void)guarded(nullptr, [&]() -> Status {
    std::string text = why ? why : "the rank failed";
    if (rank < 0 || rank >= group->group->ranks())
      text += " (sluice_group_stop: wanted a rank below " + std::to_string(group->group->ranks()) +
              ", found " + std::to_string(rank) + ")";
    group->group->stop(std::clamp(rank, 0, static_cast<int32_t>(group->group->ranks()) - 1),
                       {Code::kDevice, text});
    return {};
  });
}

sluice_status sluice_group_status(const sluice_group* group, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(group, "group"));
    return group->group->status();
  });
}

sluice_status sluice_group_recover(sluice_group* group, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(group, "group"));
    return group->group->recover();
  });
}

void sluice_group_destroy(sluice_group* group) { delete group; }

}  // extern "C"
