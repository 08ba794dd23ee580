#include "dispatch/explain.h"

namespace sluice {
namespace {

// h200: measured with CUDA 13.0: a read-only stream over 8 GiB, cuBLAS bf16 8192^3 on random data, and an empty
// kernel in a replayed graph. Other GPUs: values of the vendor's data sheets, scaled by the ratio of the H200's
// measured value to its data sheet; h100 is the SXM5 module.
const DeviceInfo kKnown[] = {
    {.name = "h200",
     .backend = Backend::kCuda,
     .sm = 90,
     .cores = 132,
     .mem_bytes_per_us = 4.60e6,
     .bf16_flops_per_us = 703e6,
     .f32_flops_per_us = 60e6,
     .launch_us = 0.51,
     .layout = WeightLayout::kRowMajor},
    {.name = "h100",
     .backend = Backend::kCuda,
     .sm = 90,
     .cores = 132,
     .mem_bytes_per_us = 3.21e6,
     .bf16_flops_per_us = 703e6,
     .f32_flops_per_us = 60e6,
     .launch_us = 0.51,
     .layout = WeightLayout::kRowMajor},
    {.name = "a100",
     .backend = Backend::kCuda,
     .sm = 80,
     .cores = 108,
     .mem_bytes_per_us = 1.95e6,
     .bf16_flops_per_us = 222e6,
     .f32_flops_per_us = 19e6,
     .launch_us = 0.51,
     .layout = WeightLayout::kRowMajor},
    // CPUs with two threads, by feature set: for golden tests that must not depend on the local machine.
    {.name = "cpu-avx2",
     .backend = Backend::kCpu,
     .cores = 2,
     .cpu_features = kAvx2,
     .mem_bytes_per_us = 26e3,
     .bf16_flops_per_us = 0.15e6,
     .f32_flops_per_us = 0.15e6,
     .launch_us = 2},
    {.name = "cpu-avx512",
     .backend = Backend::kCpu,
     .cores = 2,
     .cpu_features = kAvx2 | kAvx512,
     .mem_bytes_per_us = 26e3,
     .bf16_flops_per_us = 0.3e6,
     .f32_flops_per_us = 0.3e6,
     .launch_us = 2},
    {.name = "cpu-avx512-bf16",
     .backend = Backend::kCpu,
     .cores = 2,
     .cpu_features = kAvx2 | kAvx512 | kAvx512Bf16,
     .mem_bytes_per_us = 26e3,
     .bf16_flops_per_us = 0.4e6,
     .f32_flops_per_us = 0.3e6,
     .launch_us = 2},
    {.name = "cpu-amx",
     .backend = Backend::kCpu,
     .cores = 2,
     .cpu_features = kAvx2 | kAvx512 | kAvx512Bf16 | kAmxBf16,
     .mem_bytes_per_us = 26e3,
     .bf16_flops_per_us = 4e6,
     .f32_flops_per_us = 0.3e6,
     .launch_us = 2},
};

}  // namespace

std::span<const DeviceInfo> known_devices() { return kKnown; }

std::string known_device_names() {
  std::string out;
  for (const DeviceInfo& d : kKnown) out += (out.empty() ? "" : ", ") + d.name;
  return out;
}

Result<DeviceInfo> known_device(std::string_view name) {
  for (const DeviceInfo& d : kKnown)
    if (d.name == name) return d;
  return invalid("device: wanted one of " + known_device_names() + ", found '" + std::string(name) + "'");
}

}  // namespace sluice
