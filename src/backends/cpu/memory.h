// Free memory of this machine.
#pragma once
#include <cstdint>
#include <string>

namespace sluice::cpu {

// Bytes that can be used without swapping: the Linux kernel's estimate, but at
// most what this process's control group and its limit on mapped memory leave.
int64_t memory_free();

// The parts of memory_free(), parsed from the text of Linux files; -1 if the text lacks the number.
int64_t meminfo_available(const std::string& meminfo);  // /proc/meminfo
int64_t cgroup_left(const std::string& limit, const std::string& current,
                    const std::string& stat);  // cgroup v2

}  // namespace sluice::cpu
