// A card: supports() and cost_us() of a kernel, without the kernel.
#pragma once
#include <string>

#include "dispatch/candidate.h"

namespace sluice::cuda {

// What a card's enqueue answers. dispatch never gets here, because no CUDA device can be opened.
template <class Op>
Status no_kernel(const typename Op::Problem&, const typename Op::Args&, Workspace, Stream) {
  return unsupported(std::string(Op::kName) + ": this build has no CUDA kernels");
}

}  // namespace sluice::cuda
