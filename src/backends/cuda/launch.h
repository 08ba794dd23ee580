// The only way to launch a kernel.
#pragma once
#include <type_traits>

#include "backends/cuda/queue.h"

namespace sluice::cuda {

struct Launch {
  dim3 grid = {1, 1, 1}, block = {128, 1, 1};
  size_t shared_bytes = 0;   // dynamic shared memory
  dim3 cluster = {1, 1, 1};  // in CTAs; the product is at most 16 (above 8 is non-portable)
  // If true, all CTAs are co-resident, so they may wait for each other. The launch returns kDevice if the CTAs do not fit.
  bool cooperative = false;
  // If false, this launch starts only when the previous launch has ended, even if Queue::dependent is
  // set. For grids that need an idle GPU, where the hardware places CTAs in order (tile/dependent.cuh).
  bool dependent = true;
};

// The untyped part of launch(): raises the kernel's limits of shared memory and cluster size, launches the kernel and records its
// name. `name` must live as long as the process. A kDevice error names the kernel and has the driver's message.
Status launch_kernel(std::string_view name, const void* kernel, const Launch& how, Stream stream,
                     void** arguments);

// Enqueues kernel(arguments...). Parameters are passed by value and converted as in a call. If Queue::dependent is set, this is a
// dependent launch. So every kernel calls wait_for_previous() (tile/dependent.cuh) before it touches memory that an earlier
// kernel may have written, and before it writes anything.
template <class... Parameters>
Status launch(std::string_view name, void (*kernel)(Parameters...), const Launch& how, Stream stream,
              std::type_identity_t<Parameters>... arguments) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))..., nullptr};
  return launch_kernel(name, reinterpret_cast<const void*>(kernel), how, stream, pointers);
}

}  // namespace sluice::cuda
