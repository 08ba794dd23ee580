// The experts of an MoE layer with MXFP4 weights: shapes, weights, routing, and what the layer's output should be.
#pragma once
#include <string>
#include <vector>

#include "cuda/memory.h"
#include "cuda/peers.h"
#include "ops/expert_gemm.h"
#include "ops/pack_experts.h"

namespace sluice::bench {

struct ExpertShape {
  const char* model;
  int64_t experts, top_k, hidden, intermediate;
  bool gpt_oss;  // biases, interleaved gate and up, its activation; else DeepSeek V4's
  double alpha() const { return gpt_oss ? 1.702 : 1; }
  double beta() const { return gpt_oss ? 1 : 0; }
  double limit() const { return gpt_oss ? 7 : 10; }
  // Of one expert, without padding.
  int64_t weights() const { return 3 * hidden * intermediate; }
  int64_t weight_bytes() const { return weights() / 2 + weights() / 32; }
  ExpertGemm::Problem up(int64_t tokens) const;
  ExpertGemm::Problem down(int64_t tokens) const;  // f32 up to 64 tokens, bf16 beyond
  sluice_peer_layer peer_problem(int64_t tokens) const;
};
std::vector<ExpertShape> expert_shapes();

// How tokens choose experts.
enum class Spread : uint8_t { kUniform, kZipf };
constexpr const char* word_of(Spread s) { return s == Spread::kUniform ? "uniform" : "zipf"; }

// Ids without repetition and weights that add up to 1, several times over. The first n tokens of a draw serve runs of n.
// Zipf: an expert's chance goes down with the inverse of its rank; ranks differ from draw to draw.
struct Draw {
  Tensor ids, weights;  // [tokens, top_k] on the GPU
  std::vector<int32_t> on_host = {};
  // Experts that the first `tokens` tokens reach.
  int64_t active(int64_t tokens, int64_t top_k, int64_t experts) const;
};
Status make_draws(Memory& memory, const ExpertShape& shape, Spread spread, int64_t tokens, int64_t count,
                  std::vector<Draw>* out);

// The two matrices of all experts as ExpertGemm takes them.
struct PackedExperts {
  Tensor up, up_scale, down, down_scale;
};

// What a peer made of the same weights, by set.
struct PackedByPeer {
  const sluice_layer_peer* peer = nullptr;
  std::vector<const void*> sets = {};
};

// Sets of weights that take turns, so that none is in the L2 cache when its turn comes again. Every peer that takes the
// shape has its own copies of them.
class Experts {
 public:
  Experts(Device& device, const ExpertShape& shape) : shape_(shape), memory_(device) {}
  // Peers that fail are left out, with a complaint.
  Status make(const Peers& peers, std::vector<std::string>* complaints);

  const ExpertShape& shape() const { return shape_; }
  Memory& memory() { return memory_; }
  const PackedExperts& set(int64_t i) const { return sets_[static_cast<size_t>(i) % sets_.size()]; }
  const Tensor& up_bias() const { return up_bias_; }
  const Tensor& down_bias() const { return down_bias_; }
  const std::vector<PackedByPeer>& peers() const { return peers_; }
  int64_t sets() const { return static_cast<int64_t>(sets_.size()); }

  // Holds rows of y [tokens, hidden or more], computed with the weights of set 0, against the layer in double precision:
  // three tokens, all columns. Empty, or what is wrong: a token whose difference, as the root of its mean square, passes
  // `share` of that of the reference.
  Result<std::string> check(const Tensor& x, const Tensor& ids, const Tensor& weights, const Tensor& y,
                            double share);

 private:
  Status fill(int64_t set);
  Status pack(PackedExperts* out);
  sluice_peer_experts raw() const;

  ExpertShape shape_;
  Memory memory_;
  // As a checkpoint has them; in the end those of set 0.
  Tensor up_rows_ = {}, up_scales_ = {}, down_rows_ = {}, down_scales_ = {}, up_bias_ = {}, down_bias_ = {};
  std::vector<PackedExperts> sets_;
  std::vector<PackedByPeer> peers_;
};

// The layer of `count` tokens in double precision, from weights as a checkpoint has them (experts_reference.cu).
// sampled i32[count] on the GPU are rows of x, ids and weights; h f64[count, top_k, intermediate], y f64[count, hidden].
struct ReferenceArgs {
  const void* x = nullptr;
  const int32_t *ids = nullptr, *sampled = nullptr;
  const float* weights = nullptr;
  sluice_peer_experts experts = {};
  double *h = nullptr, *y = nullptr;
};
Status reference_layer(const ExpertShape& shape, const ReferenceArgs& args, int64_t count, Stream stream);

}  // namespace sluice::bench
