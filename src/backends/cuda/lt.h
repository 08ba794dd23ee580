// What the cards of cuBLASLt kernels share.
#pragma once
#include "backends/cuda/card.h"

namespace sluice::cuda {

struct LtTypes {
  DType x, w, y;
  bool bias;
};

inline Refusal lt_supports(const LtTypes& t, const DeviceInfo& d) {
  Refusal r;
  r.need(d.sm >= 80, "sm >= 80 (bf16 tensor cores)", "sm", d.sm);
  r.need(t.x == t.w, "x and w of one type (the library multiplies no mixed pair)",
         std::string("x=") + text(t.x) + " w=" + text(t.w));
  r.need(t.x == DType::kBF16 || t.y == DType::kF32, "y in f32 when x is (no other output type)",
         std::string("y=") + text(t.y));
  r.need(!t.bias || t.w == t.y, "a bias of y's type (the epilogue adds no other)",
         std::string("w=") + text(t.w) + " y=" + text(t.y));
  return r;
}

// The shortest time measured for the library on a gate, plus a launch.
inline double lt_floor_us(const DeviceInfo& d) { return 5.6 + d.launch_us; }

// f32 without TF32: the contracts promise products in f32.
inline double lt_flops_per_us(DType x, const DeviceInfo& d) {
  return x == DType::kBF16 ? d.bf16_flops_per_us : d.f32_flops_per_us;
}

template <class Op>
size_t lt_workspace_bytes(const typename Op::Problem&, const DeviceInfo&) {
  return size_t{32} << 20;  // recommended for Hopper by its documentation
}

}  // namespace sluice::cuda
