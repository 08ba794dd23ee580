// Shared by the kernel descriptors of the CUDA backend. A kernel descriptor has a kernel's supports() and
// cost_us() in plain C++, without the kernel, so any machine can explain what a GPU would run. A kernel's
// file begins with its descriptor. All code that needs CUDA follows under `#if defined(__CUDACC__)`. nvcc
// compiles both parts; a C++ compiler compiles only the descriptor (SLUICE_CUDA=CARDS).
#pragma once
#include <algorithm>
#include <cmath>
#include <string>

#include "dispatch/candidate.h"

namespace sluice::cuda {

// The enqueue function of a planned kernel. No device offers a planned kernel, so dispatch never calls this function.
template <class Op>
Status no_kernel(const typename Op::Problem&, const typename Op::Args&, Workspace, Stream) {
  return unsupported(std::string(Op::kName) + ": this kernel is planned; no build has it yet");
}

// The error of a build without kernels: what is missing, and what to do.
inline constexpr std::string_view kNoKernels =
    "this build has no CUDA kernels, only their descriptors; \"./dev gpu\" builds them (by hand: cmake "
    "-DSLUICE_CUDA=ON)";
template <class Op>
Status not_compiled(const typename Op::Problem&, const typename Op::Args&, Workspace, Stream) {
  return unsupported(std::string(Op::kName) + ": " + std::string(kNoKernels));
}

// True if nvcc compiles this file, including the kernel. Otherwise the descriptor marks its kernel as planned.
#if defined(__CUDACC__)
constexpr bool kHasKernels = true;
#else
constexpr bool kHasKernels = false;
#endif

// not_compiled() and enqueue_of() for a kernel descriptor with several configurations.
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

// The enqueue function of a kernel descriptor. Launcher is a class in the kernel's file; only nvcc compiles its enqueue().
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

// The fixed time of a kernel: from launch until its first bytes arrive, plus the time in which its last CTAs
// end. Measured on an H200: the time of small kernels that only read memory, extrapolated to zero bytes.
constexpr double kRampUs = 2.2;

// Cost of a memory-bound kernel.
template <class Op>
double stream_us(const typename Op::Problem& p, const DeviceInfo& d) {
  return kRampUs + Op::bytes(p) / d.mem_bytes_per_us;
}

}  // namespace sluice::cuda
