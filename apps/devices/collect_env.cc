#include <dlfcn.h>
#include <sys/utsname.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "apps/devices/devices.h"
#include "backends/backends.h"
#include "dispatch/explain.h"
#include "graph/any_op.h"

namespace sluice::apps {
namespace {

void line(const char* name, const std::string& value) { std::printf("%-12s %s\n", name, value.c_str()); }

// The value in the file's first line of the form "key ... : value"; empty if there is no such line.
std::string value_in(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string row; std::getline(file, row);) {
    if (row.compare(0, key.size(), key) != 0) continue;
    const size_t colon = row.find(':');
    const size_t begin = colon == std::string::npos ? colon : row.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : row.substr(begin);
  }
  return "";
}

std::string or_unknown(std::string value) { return value.empty() ? "unknown" : std::move(value); }

std::string cuda_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return "no driver (libcuda.so.1 does not load)";
  using DriverVersion = int (*)(int*);
  const auto get = reinterpret_cast<DriverVersion>(dlsym(library, "cuDriverGetVersion"));
  int version = 0;
  const bool known = get && get(&version) == 0;
  dlclose(library);
  if (!known) return "a driver of unknown version";
  return "driver for CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string kernels_of(Backend backend) {
  int built = 0, planned = 0;
  for (const std::string& op : op_names())
    for (const Verdict& v : make_problem(op).value()->decide({}, all_candidates(), {}).verdicts) {
      if (v.candidate.substr(0, v.candidate.find('.')) != text(backend)) continue;
      ++(v.planned ? planned : built);
    }
  return std::to_string(built) + " kernels built, " + std::to_string(planned) + " planned";
}

}  // namespace

int collect_env() {
  line("sluice", SLUICE_VERSION);
#if defined(__clang__)
  line("compiler", __VERSION__);
#else
  line("compiler", "GCC " __VERSION__);
#endif
  const std::string sanitizers = SLUICE_SANITIZE;
  line("build", std::string(SLUICE_BUILD_TYPE) + (sanitizers.empty() ? "" : ", sanitize " + sanitizers));
  utsname system{};
  if (uname(&system) == 0)
    line("system", std::string(system.sysname) + " " + system.release + " " + system.machine);
  line("processor", or_unknown(value_in("/proc/cpuinfo", "model name")));
  line("memory", or_unknown(value_in("/proc/meminfo", "MemTotal")) + ", available " +
                     or_unknown(value_in("/proc/meminfo", "MemAvailable")));
  line("simd", "compiled for " + compiled_simd_levels());
  const auto cpu = open_device({});
  line("cpu",
       (cpu.ok() ? text(cpu.value()->info()) : cpu.status().message) + "; " + kernels_of(Backend::kCpu));
  const auto cuda = open_device({.backend = Backend::kCuda});
  line("cuda", cuda_driver() + "; " + kernels_of(Backend::kCuda));
  if (!cuda.ok()) line("", cuda.status().message);
  return kExitOk;
}

}  // namespace sluice::apps
