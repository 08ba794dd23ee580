// This machine's performance ceilings, with which kernels are compared.
#pragma once
#include <cstdint>
#include <span>

#include "dispatch/device.h"
#include "timing.h"

namespace sluice::bench {

// One layer of gated experts: x [width] -> 2 * features -> activation -> features -> width.
struct ExpertShape {
  int64_t experts = 32, top_k = 4, width = 2880, features = 2880;
};

// OpenBLAS sgemm on weights that were dequantized to f32 beforehand: two calls for each expert that has rows, one per matrix. Gather,
// bias and activation are omitted.
class SgemmExperts {
 public:
  SgemmExperts(const ExpertShape& shape, int threads);
  ~SgemmExperts();
  SgemmExperts(const SgemmExperts&) = delete;
  SgemmExperts& operator=(const SgemmExperts&) = delete;
  bool ready() const { return weights_ != nullptr; }  // false: there was not enough memory
  Sample run(std::span<const int32_t> rows_of_expert, int64_t runs);

 private:
  ExpertShape shape_;
  float* weights_ = nullptr;  // [experts][3 * features][width]: gate and up, then down
};

}  // namespace sluice::bench
