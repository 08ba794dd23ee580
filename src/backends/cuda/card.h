// What the cards of CUDA kernels have in common. A card is supports() and cost_us() of a kernel, without the kernel: plain
// C++, so that any machine explains what a GPU would do. A kernel's file begins with its card; all that needs CUDA follows
// under `#if defined(__CUDACC__)`. nvcc compiles both, a C++ compiler the card alone (SLUICE_CUDA=CARDS).
#pragma once
#include <algorithm>
#include <cmath>
#include <string>

#include "dispatch/candidate.h"

namespace sluice::cuda {

// What a planned card's enqueue answers. No device offers one, so dispatch never gets here.
template <class Op>
Status no_kernel(const typename Op::Problem&, const typename Op::Args&, Workspace, Stream) {
  return unsupported(std::string(Op::kName) + ": a planned kernel, in no build yet");
}

// What is wrong and what to do about it, in a build of cards alone.
inline constexpr std::string_view kNoKernels =
    "this build has no CUDA kernels, only their cards; \"./dev gpu\" builds them (by hand: cmake "
    "-DSLUICE_CUDA=ON)";
template <class Op>
Status not_compiled(const typename Op::Problem&, const typename Op::Args&, Workspace, Stream) {
  return unsupported(std::string(Op::kName) + ": " + std::string(kNoKernels));
}

// Whether this file is compiled with its kernel. Where it is not, the card is a planned one.
#if defined(__CUDACC__)
constexpr bool kHasKernels = true;
#else
constexpr bool kHasKernels = false;
#endif

// The same of a card with several configurations.
template <class Op>
Status config_not_compiled(const typename Op::Problem&, std::span<const KernelLaunch>,
                           const typename Op::Args&, Workspace, Stream) {
  return unsupported(std::string(Op::kName) + ": " + std::string(kNoKernels));
}
template <class Op, class Launcher>
constexpr auto enqueue_config_of() {
  if constexpr (kHasKernels) {
    return &Launcher::enqueue;
  } else {
    return &config_not_compiled<Op>;
  }
}

// A card's enqueue: Launcher::enqueue, a class of the kernel's own file, where that is compiled.
template <class Op, class Launcher>
constexpr auto enqueue_of() {
  if constexpr (kHasKernels) {
    return &Launcher::enqueue;
  } else {
    return &not_compiled<Op>;
  }
}

template <class Op>
size_t no_workspace(const typename Op::Problem&, const DeviceInfo&) {
  return 0;
}

inline void need_sm90(Refusal& r, const DeviceInfo& d) {
  r.need(d.sm >= 90, "sm >= 90 (bulk copies, clusters, wgmma)", "sm", d.sm);
}

inline void need_multiple(Refusal& r, std::string_view name, int64_t value, int64_t of,
                          std::string_view cause) {
  if (value % of == 0) return;
  r.need(false, std::string(name) + " % " + std::to_string(of) + " == 0 (" + std::string(cause) + ")", name,
         value);
}

inline void need_type(Refusal& r, std::string_view name, DType found, DType wanted, std::string_view cause) {
  if (found == wanted) return;
  r.need(false, std::string(name) + " in " + text(wanted) + " (" + std::string(cause) + ")",
         std::string(name) + "=" + text(found));
}

// A launch from its start to its first bytes, and its drain: what a kernel costs beside its bytes, measured
// on an H200 as the intercept of short streams over their size.
constexpr double kRampUs = 2.2;

// Time of the memory traffic of one kernel that does little else.
template <class Op>
double stream_us(const typename Op::Problem& p, const DeviceInfo& d) {
  return kRampUs + Op::bytes(p) / d.mem_bytes_per_us;
}

}  // namespace sluice::cuda
