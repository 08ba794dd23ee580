#include <cstdio>
#include <vector>

#include "apps/commands.h"
#include "apps/json.h"
#include "backends/backends.h"
#include "dispatch/explain.h"

namespace sluice::apps {
namespace {

void print_device(const DeviceInfo& d) {
  std::printf("  %-16s %9.0f GB/s %9.1f TFLOP/s bf16  %s\n", d.name.c_str(), d.mem_bytes_per_us / 1e3,
              d.bf16_flops_per_us / 1e6, text(d).c_str());
}

}  // namespace

int devices(Format format) {
  const auto opened = open_device({});
  if (!opened.ok()) return wrong_use(opened.status().message);
  const auto gpu = open_device({.backend = Backend::kCuda});
  std::vector<DeviceInfo> here = {opened.value()->info()};
  if (gpu.ok()) here.push_back(gpu.value()->info());
  if (format == Format::kJson) {
    std::fputs(devices_json(here, gpu.status().message, known_devices()).c_str(), stdout);
    return kExitOk;
  }
  std::printf("this machine (what the cost models assume of it)\n");
  for (const DeviceInfo& d : here) print_device(d);
  if (!gpu.ok()) std::printf("  %s\n", gpu.status().message.c_str());
  std::printf("known devices (explain --device NAME works without them)\n");
  for (const DeviceInfo& d : known_devices()) print_device(d);
  return kExitOk;
}

}  // namespace sluice::apps
