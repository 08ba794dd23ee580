#include "apps/common/main_device.h"

#include "backends/backends.h"
#include "base/printable.h"

namespace sluice::apps {

Result<std::unique_ptr<Device>> open_main_device(const std::string& name, int threads) {
  if (name != "auto" && name != "cpu" && name != "cuda") {
    const std::string known[] = {"auto", "cpu", "cuda"};
    if (name == "gpu") return invalid("unknown --device 'gpu'; did you mean 'cuda'?");
    return unknown_name("--device", name, known);
  }
  if (name != "cpu") {
    auto gpu = open_device({.backend = Backend::kCuda});
    // If a GPU is present but cannot be opened, the error is reported, because the CPU could be forty times slower.
    if (gpu.ok() || name == "cuda" || gpu.status().code != Code::kUnsupported) return gpu;
  }
  return open_device({.threads = threads});
}

}  // namespace sluice::apps
