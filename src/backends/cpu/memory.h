// Free memory of this machine.
#pragma once
#include <cstdint>
#include <string>

namespace sluice::cpu {

// Bytes that can be used without swapping: the estimate of the Linux kernel, limited by this process's control group and its limit on
// mapped memory.
int64_t memory_free();

// The parts of that number, parsed from files of Linux; -1 if the text lacks the number.
int64_t meminfo_available(const std::string& meminfo);  // /proc/meminfo
int64_t cgroup_left(const std::string& limit, const std::string& current,
                    const std::string& stat);  // cgroup v2

}  // namespace sluice::cpu
