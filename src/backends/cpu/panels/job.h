// A grouped GEMM over panels16 weights, in the form that the engines in this folder read: no Problem, no activation.
#pragma once
#include <cstdint>

#include "backends/cpu/pool.h"
#include "base/tensor.h"
#include "ops/weight_layout.h"

// Highway 1.0.3 supports neither instruction set, so the engines use plain intrinsics. Each
// function that uses them has its own target attribute, and the rest of the library stays portable.
#if defined(__x86_64__)
#define SLUICE_AVX512 __attribute__((target("avx2,fma,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")))
#define SLUICE_AVX512BF16 \
  __attribute__((target("avx2,fma,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16")))
#define SLUICE_AMXBF16 \
  __attribute__((      \
      target("avx2,fma,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")))
#endif

namespace sluice::cpu {

// Sums of some rows of one expert with one panel or two adjacent panels, before bias and activation.
struct PanelSums {
  int64_t expert, row, rows;  // rows [row, row + rows) of y
  // the first panel; 1 or 2 panels, and both panels of a gated pair are in the same PanelSums
  int64_t panel, panels;
  const float* sums[2];  // per panel: [rows][16 lanes], aligned to 64 bytes
};

// Receives each sum once, from any thread of the pool.
struct PanelSink {
  const void* context;
  void (*take)(const void* context, const PanelSums& sums);
};

// The rows of x. A row is `width` bf16; the panels are padded to `padded` with zeros.
struct PanelInput {
  const BF16* x = nullptr;
  int64_t stride = 0;              // elements between rows
  const int32_t* order = nullptr;  // if slots > 0, row r is x[order[r] / slots]
  int64_t slots = 0;
  int64_t width = 0, padded = 0;
  const BF16* row(int64_t r) const { return x + (slots > 0 ? order[r] / slots : r) * stride; }
};

struct PanelJob {
  PanelInput input;
  const uint8_t* codes = nullptr;   // of all experts
  const uint8_t* scales = nullptr;  // e8m0 of e2m1 codes
  bool mxfp4 = false;               // otherwise the codes are bf16
  int64_t panels = 0;               // per expert
  int64_t experts = 1;
  int64_t rows = 0;                    // upper bound on the rows of all experts
  const int32_t* row_begin = nullptr;  // null: one expert has all rows
  const int32_t* row_count = nullptr;
  std::byte* scratch = nullptr;
  size_t scratch_bytes = 0;

  WeightFormat format() const { return {mxfp4 ? DType::kE2M1 : DType::kBF16}; }
  PanelShape shape() const { return {panels, input.padded}; }
  int64_t blocks() const { return input.padded / 32; }
  int64_t first_row(int64_t e) const { return row_begin ? row_begin[e] : 0; }
  int64_t row_count_of(int64_t e) const { return row_count ? row_count[e] : rows; }
};

// The same for one panel of one expert.
struct PanelPointers {
  const uint8_t* codes;
  const uint8_t* scales;
};
inline PanelPointers panel_of(const PanelJob& job, int64_t expert, int64_t panel) {
  const int64_t at = expert * job.panels + panel;
  const PanelShape one{1, job.input.padded};
  return {job.codes + at * one.code_bytes(job.format()),
          job.mxfp4 ? job.scales + at * one.scale_bytes(job.format()) : nullptr};
}

}  // namespace sluice::cpu
