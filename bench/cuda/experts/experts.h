// The experts of an MoE layer with weights of any format: shapes, weights, routing, and the layer's expected output.
#pragma once
#include <string>
#include <vector>

#include "cuda/gate.h"
#include "cuda/memory.h"
#include "cuda/peers.h"
#include "nn/moe/layer.h"
#include "ops/pack_experts.h"

namespace sluice::bench {

struct ExpertShape {
  const char* model;
  int64_t top_k, hidden, intermediate;
  DType w;
  Activation act;
  double alpha = 1, beta = 0, limit = 0;
  GateOrder order = GateOrder::kGateFirst;
  bool biases = false;  // of both matrices and of the gate
  // Routing, from logits to ids and weights. Tokens choose among all experts. With scope kRange this rank holds only some of them;
  // the other experts contribute nothing.
  RouteTopk::Problem route = {};
  // The number of shared experts, 0 or 1, of the size of a routed expert. A shape with 1 also has a draft_step.
  int64_t shared = 0;
  // No kernel and no cost model was fitted to this shape. It is measured only if --models names it.
  bool held_out = false;
  bool fp8_x = false;  // kernels may round rows of x to FP8
  WeightScales scales = WeightScales::kMx;

  WeightFormat format() const { return {w, scales}; }
  bool mxfp4() const { return format() == WeightFormat{DType::kE2M1}; }
  bool partial() const { return route.scope == ExpertScope::kRange; }
  int64_t experts() const { return partial() ? route.expert_count : route.experts; }  // experts of this rank
  // Weights of one expert, without padding.
  int64_t weights() const { return (is_gated(act) ? 3 : 2) * hidden * intermediate; }
  int64_t weight_bytes() const {
    return static_cast<int64_t>(static_cast<double>(weights()) * format().bits() / 8);
  }
  // Rows of one expert's first matrix.
  int64_t up_rows() const { return (is_gated(act) ? 2 : 1) * intermediate; }
  GateShape gate() const;  // of the same model
  MoeConfig moe() const;   // the whole layer, as a user plans it, without shared experts
  ExpertMlp::Problem mlp(int64_t tokens) const;  // the part of that layer after ids and weights
  sluice_peer_layer peer_problem(int64_t tokens) const;
  // The layer's bytes (x, y and the weights of the experts that have rows), and the flops of `rows` rows.
  double bytes(int64_t tokens, double experts_reached) const;
  double flops(double rows) const { return 2.0 * rows * static_cast<double>(weights()); }
};
std::vector<ExpertShape> mxfp4_shapes();
std::vector<ExpertShape> bf16_shapes();
// bf16's models in FP8 (blocks of 128 x 128, and one scale for each row), MXFP8, NVFP4 and, to compare, MXFP4.
std::vector<ExpertShape> format_shapes();
std::vector<ExpertShape> fp8_shapes();  // each without and with fp8_x

// How tokens choose experts.
enum class Spread : uint8_t { kUniform, kZipf };
constexpr const char* word_of(Spread s) { return s == Spread::kUniform ? "uniform" : "zipf"; }

// A routing sample: each token's distinct expert ids, and weights that sum to 1. Runs of n tokens use the first n tokens. Zipf: the
// probability of an expert is proportional to 1 / popularity rank, and popularity differs between samples. Experts that are not on
// this GPU have the id -1.
struct Draw {
  Tensor ids, weights;  // [tokens, top_k] on the GPU
  std::vector<int32_t> on_host = {};
  // Of the first `pairs` ids: the number of distinct experts on this GPU, and the number of ids that choose them.
  struct Reach {
    int64_t experts, rows;
  };
  Reach reach(int64_t pairs) const;
};
Status make_draws(Memory& memory, const ExpertShape& shape, Spread spread, int64_t tokens, int64_t count,
                  std::vector<Draw>* out);

// The adapter of a token: up to 256 tokens are a decode step, in which neighbors have different adapters; more tokens are a prefill, in
// which the tokens of an adapter are adjacent.
inline int32_t adapter_of_token(int64_t token, int64_t tokens, int64_t adapters) {
  constexpr int64_t kDecodeTokens = 256;
  return static_cast<int32_t>(tokens <= kDecodeTokens ? token % adapters : token * adapters / tokens);
}

// The two matrices of all experts as ExpertGemm takes them.
struct PackedExperts {
  Tensor up, up_scale, down, down_scale;
};

// The same weights, packed by a baseline, for each set.
struct PackedByPeer {
  const sluice_layer_peer* peer = nullptr;
  std::vector<const void*> sets = {};
};

// Sets of weights that rotate, so that a set is no longer in L2 when it is used again. Each baseline that supports the shape has its own
// packed copies.
class Experts {
 public:
  Experts(Device& device, const ExpertShape& shape) : shape_(shape), memory_(device) {}
  // Omits baselines that fail, with a complaint.
  Status make(const Peers& peers, std::vector<std::string>* complaints);

  const ExpertShape& shape() const { return shape_; }
  Memory& memory() { return memory_; }
  const PackedExperts& set(int64_t i) const { return sets_[static_cast<size_t>(i) % sets_.size()]; }
  const Tensor& up_bias() const { return up_bias_; }
  const Tensor& down_bias() const { return down_bias_; }
  const std::vector<PackedByPeer>& peers() const { return peers_; }
  int64_t sets() const { return static_cast<int64_t>(sets_.size()); }

  // The shared expert's part of a matrix of set(); it follows the routed experts.
  Tensor shared(const Tensor& packed) const;

  // A layer's inputs and output, with the weights of set 0: ids [tokens, top_k or more], y [tokens, hidden or more].
  struct Answer {
    Tensor x, ids, weights, y;
    int64_t shared = 0;  // shared experts, in addition to those in ids
  };
  // Checks rows of y against the layer in double precision: three tokens, all columns. Returns an empty string, or the error: a
  // token whose RMS error exceeds `share` of the RMS of the reference.
  Result<std::string> check(const Answer& answer, double share);

 private:
  int64_t matrices() const { return shape_.experts() + shape_.shared; }
  Status fill(int64_t set);
  Status pack(PackedExperts* out);
  sluice_peer_experts raw() const;

  ExpertShape shape_;
  Memory memory_;
  // In checkpoint order; after make(), the data of set 0.
  Tensor up_rows_ = {}, up_scales_ = {}, down_rows_ = {}, down_scales_ = {}, up_bias_ = {}, down_bias_ = {};
  std::vector<PackedExperts> sets_;
  std::vector<PackedByPeer> peers_;
};

// The layer for `count` tokens in double precision, from weights in checkpoint order (experts_reference.cu). sampled i32[count], on the
// GPU, lists the tokens to compute: rows of x, ids and weights. ids and weights have `slots` columns, of which the first top_k are used.
// The `shared` experts follow the routed experts and have weight 1. h f64[count, top_k + shared, intermediate], y f64[count, hidden].
// experts.up and experts.down are weights of `format`, with scales as in ops/weight_format.h.
struct ReferenceArgs {
  const void* x = nullptr;
  const int32_t *ids = nullptr, *sampled = nullptr;
  const float* weights = nullptr;
  int64_t slots = 0, shared = 0;
  sluice_peer_experts experts = {};
  WeightFormat format = {};
  double *h = nullptr, *y = nullptr;
};
Status reference_layer(const ExpertShape& shape, const ReferenceArgs& args, int64_t count, Stream stream);

}  // namespace sluice::bench
