// RouterGemm cases whose reference is slow; they run only on GPUs.
#pragma once
#include "cases/large/expert_gemm_large.h"
#include "cases/router_gemm.h"

namespace sluice::test {

template <>
inline std::vector<Case<RouterGemm>> large_cases<RouterGemm>() {
  constexpr DType kF = DType::kF32;
  return {{{.tokens = 8400, .experts = 129, .hidden = 128, .w = kF}, "f32 weights, as many tiles as SMs"},
          {{.tokens = 1030, .experts = 256, .hidden = 3072, .w = kF}, "MiniMax-M2's gate, split-K"}};
}

}  // namespace sluice::test
