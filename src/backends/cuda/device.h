// The CUDA backend: opens a Hopper GPU and offers its candidates.
#pragma once
#include <memory>
#include <span>

#include "dispatch/device.h"
#include "dispatch/group.h"

namespace sluice::cuda {

struct Options {
  int index = 0;          // CUDA device index among the devices that this process sees
  bool dependent = true;  // programmatic dependent launch: see Queue::dependent (queue.h)
  Log log = {};
};

// Opens a GPU, creates its stream and logs one line that names the GPU. Returns kUnsupported if a driver, a GPU, compute
// capability 9.0 or the kernels of this build are missing; the message names what is missing.
Result<std::unique_ptr<Device>> open_device(const Options& options);

// Makes a group of open devices; a device's rank is its index. kInvalidArgument: a device is not of this backend or already in a group.
// kUnsupported: a GPU cannot access another's memory. Several devices may share a GPU, which only tests need.
Result<std::unique_ptr<Group>> make_group(std::span<Device* const> devices, const GroupOptions& options);

// Ok if kernels compiled for sm_90a run on a GPU of this compute capability. They run on 9.0 only.
Status accept_capability(std::string_view gpu, int major, int minor);

// All candidates of backends/cuda/candidates.def, planned ones included, for `explain`. An open device offers only the candidates
// that this build can run. In a build without kernels (card.h) all candidates are planned.
const Catalog& catalog();

}  // namespace sluice::cuda
