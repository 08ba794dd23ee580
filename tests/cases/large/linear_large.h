#pragma once
#include "cases/large/expert_gemm_large.h"
#include "cases/linear.h"

namespace sluice::test {

template <>
inline std::vector<Case<Linear>> large_cases<Linear>() {
  return {{{.tokens = 2100, .features = 1920, .width = 128, .bias = true, .residual = true},
           "more of the largest tiles than SMs"},
          {{.tokens = 64, .features = 9000, .width = 264, .y = DType::kF32, .bias = true},
           "more tiles of features than SMs"},
          {{.tokens = 140, .features = 2000, .width = 128, .bias = true, .residual = true},
           "more small tiles than CTAs"},
          {{.tokens = 300, .features = 256, .width = 192, .bias = true}, "several tiles of rows"},
          {{.tokens = 64, .features = 512, .width = 640, .y = DType::kF32}, "whole tiles"},
          {{.tokens = 65, .features = 320, .width = 520, .bias = true, .residual = true},
           "one row more than a tile"}};
}

}  // namespace sluice::test
