#include "cuda/power.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstring>

namespace sluice::bench {
namespace {

// The part of nvml.h that this file uses.
using Handle = struct nvmlDevice_st*;
constexpr unsigned kClockSm = 1;  // NVML_CLOCK_SM
constexpr unsigned kPowerInstant =
    186;  // NVML_FI_DEV_POWER_INSTANT, in milliwatts; the plain call returns a mean over 1 s
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency_us;
  unsigned type;
  int result;
  union {
    double f64;
    unsigned u32;
    unsigned long long u64;
  } value;
};

}  // namespace

struct Power::Library {
  void* library = nullptr;
  Handle gpu = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_bus)(const char*, Handle*) = nullptr;
  int (*clock)(Handle, unsigned, unsigned*) = nullptr;
  int (*fields)(Handle, int, FieldValue*) = nullptr;
  int (*power)(Handle, unsigned*) = nullptr;

  // Returns an empty string, or what is missing.
  std::string open() {
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return "libnvidia-ml.so.1 cannot be loaded";
    const auto find = [&](const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
      return *function != nullptr;
    };
    if (!find("nvmlInit_v2", &init) || !find("nvmlShutdown", &shutdown) ||
        !find("nvmlDeviceGetHandleByPciBusId_v2", &by_bus) || !find("nvmlDeviceGetClockInfo", &clock) ||
        !find("nvmlDeviceGetFieldValues", &fields) || !find("nvmlDeviceGetPowerUsage", &power))
      return "libnvidia-ml.so.1 lacks a function";
    int device = 0;
    char bus[32] = {};
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetPCIBusId(bus, sizeof bus, device) != cudaSuccess)
      return "CUDA reports no PCI address of the GPU";
    if (init() != 0) return "nvmlInit failed";
    return by_bus(bus, &gpu) == 0 ? "" : "NVML finds no GPU at " + std::string(bus);
  }

  bool read(double* watts, double* sm_mhz) {
    unsigned mhz = 0, milliwatts = 0;
    FieldValue instant = {};
    instant.field = kPowerInstant;
    if (fields(gpu, 1, &instant) == 0 && instant.result == 0) {
      milliwatts = instant.value.u32;
    } else if (power(gpu, &milliwatts) != 0) {
      return false;
    }
    if (clock(gpu, kClockSm, &mhz) != 0) return false;
    *watts = 1e-3 * milliwatts;
    *sm_mhz = mhz;
    return true;
  }
};

Power::Power() : library_(new Library) {
  problem_ = library_->open();
  if (problem_.empty()) thread_ = WorkerThread([this] { work(); });
}

Power::~Power() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  if (library_->gpu) library_->shutdown();
  delete library_;
}

void Power::work() {
  while (!stop_) {
    Sample s = {Clock::now(), 0, 0};
    if (library_->read(&s.watts, &s.sm_mhz)) {
      const std::lock_guard lock(mutex_);
      samples_.push_back(s);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

Power::Mean Power::mean(Clock::time_point from, Clock::time_point to) {
  Mean out;
  const std::lock_guard lock(mutex_);
  for (auto s = samples_.rbegin(); s != samples_.rend() && s->at >= from; ++s) {
    if (s->at > to) continue;
    out.watts += s->watts, out.sm_mhz += s->sm_mhz, ++out.samples;
  }
  if (out.samples > 0) {
    out.watts /= static_cast<double>(out.samples);
    out.sm_mhz /= static_cast<double>(out.samples);
  }
  return out;
}

}  // namespace sluice::bench
