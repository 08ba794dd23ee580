// The CUDA backend: opens a Hopper GPU and holds its candidates.
#pragma once
#include <memory>

#include "dispatch/device.h"

namespace sluice::cuda {

struct Options {
  int index = 0;          // CUDA device index, among the devices visible to this process
  bool dependent = true;  // programmatic dependent launch: see queue.h
  Log log = {};
};

// Opens a GPU and creates its stream. One log line names the GPU. kUnsupported names what is missing: a driver, a GPU, a
// GPU of compute capability 9.0, or kernels in this build.
Result<std::unique_ptr<Device>> open_device(const Options& options);

// Ok if kernels compiled for sm_90a run on a GPU of this compute capability. They run on 9.0 alone.
Status accept_capability(std::string_view gpu, int major, int minor);

// All candidates of backends/cuda/candidates.def, planned ones included: for explain. An open device offers only those
// that run. In a build without kernels (card.h) all are planned.
const Catalog& catalog();

}  // namespace sluice::cuda
