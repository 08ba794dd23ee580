// Rows of x in the order of an expert GEMM's rows, for kernels that fetch them by the copy engine.
#pragma once
#include <cstdint>
#include <string_view>

#include "ops/expert_gemm.h"

namespace sluice::cuda {

// Bytes of the gathered rows: bf16[rows, width].
inline size_t gathered_bytes(const ExpertGemm::Problem& p) {
  return static_cast<size_t>(p.rows * p.width) * 2;
}

// Measured: the rows written go at 2.3 TB/s, and as many are read.
inline double gather_us(const ExpertGemm::Problem& p) {
  return 1 + ExpertGemm::expected_rows(p) * static_cast<double>(p.width) * 2 / 2.3e6;
}

// Whether rows begin at multiples of 16 bytes, as the copy engine wants them.
inline bool has_wide_rows(const Tensor& bf16) {
  return reinterpret_cast<uintptr_t>(bf16.data) % 16 == 0 && bf16.stride[0] % 8 == 0;
}

// Enqueues, under the name `name`: row r of `to` = row order[r] / slots of args.x, where order[r] >= 0. Needs slots > 0, x in
// bf16, width % 8 == 0 and `to` aligned to 16; rows of x may begin anywhere.
Status gather_rows(std::string_view name, const ExpertGemm::Problem& problem, const ExpertGemm::Args& args,
                   void* to, Stream stream);

}  // namespace sluice::cuda
