// How much memory this machine has left.
#pragma once
#include <cstdint>
#include <string>

namespace sluice::cpu {

// Bytes that can be used without swapping: what the kernel estimates, no more than this process's control group and its limit
// on mapped memory allow.
int64_t memory_free();

// The parts of it, on the text of the files that Linux keeps; -1 where a text has no such number.
int64_t meminfo_available(const std::string& meminfo);  // /proc/meminfo
int64_t cgroup_left(const std::string& limit, const std::string& current,
                    const std::string& stat);  // cgroup v2

}  // namespace sluice::cpu
