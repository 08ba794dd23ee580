// Errors about the server's limits and state, and about unknown models.
#pragma once
#include <cstdint>
#include <string>

#include "server/requests/request.h"
#include "server/setting_names.h"

namespace sluice {

ApiError overloaded(int64_t max_queue, const SettingNames& names);
ApiError shutting_down();
ApiError no_memory();
ApiError too_much_kept(int64_t limit, const SettingNames& names);
ApiError unknown_model(const std::string& name);
ApiError timed_out(double seconds, const SettingNames& names);

}  // namespace sluice
