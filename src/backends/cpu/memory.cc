#include "backends/cpu/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>

namespace sluice::cpu {
namespace {

std::string text_of(const char* path) {
  std::ifstream file(path);
  std::ostringstream out;
  if (file) out << file.rdbuf();
  return out.str();
}

int64_t number(const std::string& text, size_t at) {
  while (at < text.size() && (text[at] == ' ' || text[at] == '\t')) ++at;
  int64_t value = -1;
  std::from_chars(text.data() + at, text.data() + text.size(), value);
  return value;
}

// The number after `name` at the start of a line.
int64_t named(const std::string& text, const std::string& name) {
  const size_t at = text.rfind(name, 0) == 0 ? 0 : text.find("\n" + name);
  if (at == std::string::npos) return -1;
  return number(text, at + name.size() + (at == 0 ? 0 : 1));
}

}  // namespace

int64_t meminfo_available(const std::string& meminfo) {
  const int64_t kib = named(meminfo, "MemAvailable:");
  return kib < 0 ? -1 : kib * 1024;
}

int64_t cgroup_left(const std::string& limit, const std::string& current, const std::string& stat) {
  const int64_t bytes_max = number(limit, 0), used = number(current, 0);
  if (bytes_max < 0 || used < 0) return -1;  // "max": no limit
  // When the operating system needs memory, it drops file pages that were not used recently.
  const int64_t files = std::max<int64_t>(0, named(stat, "inactive_file "));
  return std::max<int64_t>(0, bytes_max - used + std::min(files, used));
}

namespace {

// Bytes that this process may still map (ulimit -v); -1: no limit.
int64_t address_space_left() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  const int64_t pages = number(text_of("/proc/self/statm"), 0);  // mapped by this process
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - pages * sysconf(_SC_PAGESIZE));
}

}  // namespace

int64_t memory_free() {
  const int64_t machine = meminfo_available(text_of("/proc/meminfo"));
  const int64_t group =
      cgroup_left(text_of("/sys/fs/cgroup/memory.max"), text_of("/sys/fs/cgroup/memory.current"),
                  text_of("/sys/fs/cgroup/memory.stat"));
  const int64_t unknown = std::numeric_limits<int64_t>::max();
  const int64_t mapped = address_space_left();
  return std::min(
      {machine < 0 ? unknown : machine, group < 0 ? unknown : group, mapped < 0 ? unknown : mapped});
}

}  // namespace sluice::cpu
