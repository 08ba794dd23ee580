// Shared by the kernel descriptors of the CPU.
#pragma once
#include "backends/cpu/queue.h"
#include "dispatch/candidate.h"

namespace sluice::cpu {

// For kernels that need no scratch memory.
template <class Op>
size_t no_workspace(const typename Op::Problem&, const DeviceInfo&) {
  return 0;
}

// Time by the roofline: the contract's bytes at the share `mem_share` of the read bandwidth, and its flops at `flops_per_us`.
template <class Op>
double roofline_us(const typename Op::Problem& p, const DeviceInfo& d, double mem_share,
                   double flops_per_us) {
  const double memory = Op::bytes(p) / (d.mem_bytes_per_us * mem_share);
  const double arithmetic = Op::flops(p) / flops_per_us;
  return d.launch_us + (memory > arithmetic ? memory : arithmetic);
}

// Chunk size for a loop of `count` equal indices: so many chunks that threads finish together, so few that the time to claim them does not matter.
inline int64_t even_grain(int64_t count, const ThreadPool& pool) { return count / (16 * pool.threads()) + 1; }

// Calls f(A*) with the element type of a float tensor as A. There are two types, so f is instantiated twice.
template <class F>
void with_float(DType type, F f) {
  if (type == DType::kBF16) {
    f(static_cast<const BF16*>(nullptr));
  } else {
    f(static_cast<const float*>(nullptr));
  }
}

}  // namespace sluice::cpu
