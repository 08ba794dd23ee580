// The ceilings of the machine, which kernels are compared with.
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

// OpenBLAS sgemm on weights that were dequantised to f32 beforehand: grouped rows, one sgemm for each expert with rows and each of its two
// matrices. Gather, bias and activation are omitted.
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
  float* weights_ = nullptr;  // [experts][3 * features][width]: gates and ups, then down
};

}  // namespace sluice::bench
