// Weights and activations of a gate, and what its logits should be.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "cuda/contest.h"
#include "cuda/memory.h"
#include "ops/router_gemm.h"

namespace sluice::bench {

// Weights take turns so that none is in the L2 cache when its turn comes again: three times what the cache holds, or twice
// where time is short.
constexpr int64_t kColdBytes = int64_t{200} << 20, kQuickColdBytes = int64_t{128} << 20;
// Activations and outputs take turns, too, but stay in the cache where they fit, as behind the kernel that wrote them.
constexpr int64_t kTurns = 3;

// x [tokens, hidden] bf16, w [experts, hidden] bf16.
struct GateShape {
  int64_t hidden, experts;
  bool bias;  // gpt-oss's
  DType
      type;  // of the logits: gpt-oss has bf16, the others f32, and bf16 beside it for peers that write no other
  int64_t tokens_most = 16384;
  std::string model() const { return std::to_string(hidden) + "x" + std::to_string(experts); }
  DType logits() const { return type; }
  std::string note() const { return std::string(text(type)) + (bias ? " logits and bias" : " logits"); }
  int64_t weight_bytes() const { return 2 * experts * hidden; }
  RouterGemm::Problem problem(int64_t tokens) const {
    return {.tokens = tokens, .experts = experts, .hidden = hidden, .y = logits(), .bias = bias};
  }
};

class Gate {
 public:
  Gate(Device& device, const GateShape& shape, int64_t cold_bytes)
      : shape_(shape), cold_bytes_(cold_bytes), memory_(device) {}
  Status make(int64_t tokens_max);

  const GateShape& shape() const { return shape_; }
  Memory& memory() { return memory_; }
  RouterGemm::Args args(int64_t tokens, int64_t i) const;
  // Holds the first and the last row of y, which was computed from x with the weights of run 0, against the reference:
  // what is between goes the same way, and the tests look at all of it. Empty, or what is wrong.
  Result<std::string> check(const Tensor& x, const Tensor& y, Who who);

 private:
  GateShape shape_;
  int64_t cold_bytes_;
  Memory memory_;
  std::vector<Tensor> w_, x_, y_;
  Tensor bias_ = {};
  HostTensor host_w_ = {}, host_bias_ = {};
  std::map<std::string, Expected> expected_;  // by the bytes of a row of x: references take long
};

}  // namespace sluice::bench
