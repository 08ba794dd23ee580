// The CUDA backend: opens a Hopper GPU, and holds the candidates for it.
#pragma once
#include <memory>

#include "dispatch/device.h"

namespace sluice::cuda {

struct Options {
  int index = 0;          // as CUDA counts the devices that this process may see
  bool dependent = true;  // programmatic dependent launch: see queue.h
  Log log = {};
};

// Opens a GPU and allocates its stream. One line in the log says which. kUnsupported names what is missing: a driver, a
// GPU, one of compute capability 9.0, or this build's kernels.
Result<std::unique_ptr<Device>> open_device(const Options& options);

// Whether kernels compiled for sm_90a run on a GPU of this compute capability; they run on no other.
Status accept_capability(std::string_view gpu, int major, int minor);

// The candidates of backends/cuda/candidates.def, planned ones included: for explain. An open device has only those
// that run. In a build of cards alone (card.h) all are planned.
const Catalog& catalog();

}  // namespace sluice::cuda
