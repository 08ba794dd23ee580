#include <cstdio>
#include <vector>

#include "apps/common/json.h"
#include "apps/devices/devices.h"
#include "backends/backends.h"
#include "dispatch/explain.h"

namespace sluice::apps {
namespace {

void print_device(const DeviceInfo& d) {
  std::printf("  %-16s %9.0f GB/s %9.1f TFLOP/s bf16  %s\n", d.name.c_str(), d.mem_bytes_per_us / 1e3,
              d.bf16_flops_per_us / 1e6, text(d).c_str());
}

}  // namespace

// `here`: this machine's devices. `no_gpu`: why they include no GPU; empty if they include one. `known`: the known devices.
static std::string devices_json(std::span<const DeviceInfo> here, const std::string& no_gpu,
                                std::span<const DeviceInfo> known) {
  const auto listed = [](std::span<const DeviceInfo> devices) {
    OrderedJson list = OrderedJson::array();
    for (const DeviceInfo& d : devices) list.push_back(device_json(d));
    return list;
  };
  OrderedJson out = {{"here", listed(here)}, {"known", listed(known)}};
  if (!no_gpu.empty()) out["no_gpu"] = no_gpu;
  return json_text(out);
}

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
  std::printf("this machine (as the cost models describe it)\n");
  for (const DeviceInfo& d : here) print_device(d);
  if (!gpu.ok()) std::printf("  %s\n", gpu.status().message.c_str());
  std::printf("known devices (explain --device NAME works without the hardware)\n");
  for (const DeviceInfo& d : known_devices()) print_device(d);
  return kExitOk;
}

}  // namespace sluice::apps
