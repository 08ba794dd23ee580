// The one way in which kernels are launched.
#pragma once
#include <type_traits>

#include "backends/cuda/queue.h"

namespace sluice::cuda {

struct Launch {
  dim3 grid = {1, 1, 1}, block = {128, 1, 1};
  size_t shared_bytes = 0;   // dynamic
  dim3 cluster = {1, 1, 1};  // blocks; the product up to 8, or 16 for kernels that were asked for that
  bool cooperative =
      false;  // all blocks run at once, so they may wait for each other; kDevice where they do not fit
  // false: the kernel in front ends first, whatever the queue says. For blocks that want an empty chip, on which they are
  // placed in order (tile/dependent.cuh).
  bool dependent = true;
};

// Everything but the types: raises the kernel's limits of shared memory and cluster size, launches, notes its name.
// `name` must live as long as the process. kDevice names the kernel and what the driver said.
Status launch_kernel(std::string_view name, const void* kernel, const Launch& how, Stream stream,
                     void** arguments);

// Enqueues kernel(arguments...). Parameters are passed by value and converted as in a call. Where the stream says so,
// the launch is a dependent one, so every kernel waits (tile/dependent.cuh) before it touches memory that others may
// have written, and before it writes anything.
template <class... Parameters>
Status launch(std::string_view name, void (*kernel)(Parameters...), const Launch& how, Stream stream,
              std::type_identity_t<Parameters>... arguments) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))..., nullptr};
  return launch_kernel(name, reinterpret_cast<const void*>(kernel), how, stream, pointers);
}

}  // namespace sluice::cuda
