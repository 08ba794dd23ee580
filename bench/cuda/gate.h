// Weights and activations of a gate, and its expected logits.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "cuda/contest.h"
#include "cuda/memory.h"
#include "ops/router_gemm.h"

namespace sluice::bench {

// Bytes of rotating weights, so that a set is no longer in L2 when it is used again: three times the L2, or twice if time is short.
constexpr int64_t kColdBytes = int64_t{200} << 20, kQuickColdBytes = int64_t{128} << 20;
// Activations and outputs rotate too, but stay in L2 if they fit, as in a model, where the previous kernel has just written them.
constexpr int64_t kTurns = 3;

// x [tokens, hidden] bf16, w [experts, hidden] and bias of type w.
struct GateShape {
  int64_t hidden, experts;
  bool bias;  // gpt-oss has a bias
  // Of the logits: bf16 for gpt-oss, f32 for other models; also bf16 for baselines that write only bf16.
  DType type;
  int64_t tokens_max = 16384;
  DType w = DType::kBF16;
  std::string model() const { return std::to_string(hidden) + "x" + std::to_string(experts); }
  DType logits() const { return type; }
  std::string note() const {
    return std::string(w == DType::kF32 ? "f32 gate and " : "") + text(type) +
           (bias ? " logits and bias" : " logits");
  }
  int64_t weight_bytes() const { return bytes_of(w, experts * hidden); }
  RouterGemm::Problem problem(int64_t tokens) const {
    return {.tokens = tokens, .experts = experts, .hidden = hidden, .w = w, .y = logits(), .bias = bias};
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
  // Checks the first and the last row of y, computed from x with the weights of run 0, against the reference. The rows between
  // take the same path, and the tests check all rows. Returns an empty string, or a description of the error.
  Result<std::string> check(const Tensor& x, const Tensor& y, Who who);

 private:
  GateShape shape_;
  int64_t cold_bytes_;
  Memory memory_;
  std::vector<Tensor> w_, x_, y_;
  Tensor bias_ = {};
  HostTensor host_w_ = {}, host_bias_ = {};
  std::map<std::string, Expected>
      expected_;  // cached by the bytes of a row of x, because references are slow
};

}  // namespace sluice::bench
