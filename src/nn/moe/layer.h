// The Mixture-of-Experts layer: router, routing and grouping, experts, combine: stages of a graph (nn/moe/graph.h), which each count
// of tokens covers with the kernels that cost least.
#pragma once
#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/step.h"
#include "nn/owned_tensor.h"

namespace sluice {

// A layer's shape and arithmetic. Tensor- and expert-parallel slices are data: a smaller `intermediate`, a
// scope. As text (base/fields.h): "hidden=2880 experts=128 ...".
struct MoeConfig {
  int64_t hidden = 2880, intermediate = 2880, experts = 32, top_k = 4;
  // A dense MLP: one expert, whose answer every token gets as it is. No router; experts and top_k are 1.
  bool dense = false;
  DType x = DType::kBF16;  // activations in and out
  DType g = DType::kBF16;  // each expert's answers, until they are summed up; f32 beside an x in f32
  // Router.
  DType router_w = DType::kBF16, logits = DType::kF32;
  bool router_bias = false;
  // Adapters on the router (ops/lora_delta.h), one for each token or none; lora_rank 0: no adapters.
  int64_t lora_rank = 0, lora_adapters = 0;
  DType lora_w = DType::kBF16;
  // Routing: see ops/route_topk.h. With ids and weights that the caller gives (precomputed, packed) there is no router, and of
  // these fields only experts, top_k, scale, scope and the shared slots count.
  RoutingInput input = RoutingInput::kLogits;
  RoutingMethod method = RoutingMethod::kRenormalize;
  bool correction_bias = false;
  int64_t groups = 1, topk_groups = 1;
  double scale = 1;
  int64_t hash_vocab = 0;  // method kHash: tokens that its table knows
  ExpertScope scope = ExpertScope::kAll;
  int64_t expert_begin = 0, expert_count = 0;  // scope kRange: the experts whose weights are here
  bool weight_on_input = false;                // Llama 4
  // tokens_valid[0] says how many rows are real: the others have no expert, so their y is what shared expert on a path of its
  // own and residual stream give, or zeros.
  bool padded = false;
  // Writes the experts that each token chose to MoeIo::captured. Costs nothing where chooses_in_captured().
  bool capture = false;
  // Experts: see ops/expert_gemm.h.
  DType expert_w = DType::kE2M1;
  WeightLayout layout = WeightLayout::kPanels16;
  GateOrder gate_order = GateOrder::kInterleaved;
  Activation act = Activation::kSwiGlu;
  double alpha = 1, beta = 0, limit = 0;
  bool per_expert =
      false;  // ExpertWeights::act_params in place of alpha, beta, limit; a shared expert apart keeps those
  bool up_bias = false,
       down_bias = false;  // of W13 and W2; tensor-parallel ranks above 0 leave down_bias out
  // One shared expert for every token, with the same activation; 0: none.
  int64_t shared_intermediate = 0;
  DType shared_w = DType::kBF16;  // of its weights: bf16 also where the experts are MXFP4
  // The shared expert as one more slot of every token, or as several: parts of the size of a routed expert, after those in
  // `experts` of the weights, weighing 1 whatever `scale` is. Fewer launches than a path of its own; needs shared_fits_slots().
  bool shared_as_slots = false;
  // Columns of what the experts read and write, where a linear projection of x, in bf16, stands before them and one of their sum
  // after them (Nemotron 3 Super); router and shared expert read x itself. 0: the experts do, too.
  int64_t latent = 0;
  bool residual = false;  // adds the residual stream to the output
  // Norms around the layer (ops/rms_norm.h), by kernels of it where they cost no launch. norm_x: the layer reads the norm of MoeIo::x, with
  // MoeIo::x_norm_weight. norm_y: it writes MoeIo::normed too, the norm of y with MoeIo::norm_weight, for the layer that follows.
  bool norm_x = false, norm_y = false;
  double norm_eps = 1e-5;
  bool x_unaligned =
      false;  // rows of x, residual, y and normed may begin anywhere, not only at multiples of 16 bytes; slower with many tokens

  bool operator==(const MoeConfig&) const = default;
  template <class V, class C>
  static void fields(V& v, C& c) {
    v("hidden", c.hidden, "columns of x and y");
    v("intermediate", c.intermediate, "columns between an expert's two products, on this rank");
    v("experts", c.experts, "experts that the router knows, on all ranks");
    v("top_k", c.top_k, "experts for each token");
    v("dense", c.dense, "one expert for all tokens, and no router: a dense MLP");
    v("x", c.x, "type of the activations in and out");
    v("g", c.g, "type of each expert's answers, until they are summed up");
    v("router_w", c.router_w, "type of the router's weights and its bias");
    v("logits", c.logits, "type of the router's scores");
    v("router_bias", c.router_bias, "the router adds a bias");
    v("lora_rank", c.lora_rank, "rank of the adapters on the router; 0: none");
    v("lora_adapters", c.lora_adapters, "adapters on the router, one of them for each token");
    v("lora_w", c.lora_w, "type of the adapters' matrices");
    v("input", c.input, "logits, or ids and weights that the caller gives");
    v("method", c.method, "how scores choose and weigh");
    v("correction_bias", c.correction_bias, "a bias that chooses but does not weigh");
    v("groups", c.groups, "groups of neighbouring experts");
    v("topk_groups", c.topk_groups, "groups that stay");
    v("scale", c.scale, "routed scaling factor");
    v("hash_vocab", c.hash_vocab, "method=hash: tokens that its table knows");
    v("scope", c.scope, "which experts have weights here");
    v("expert_begin", c.expert_begin, "scope=range: the first expert of this rank");
    v("expert_count", c.expert_count, "scope=range: experts of this rank");
    v("weight_on_input", c.weight_on_input, "router weights multiply what goes into the experts");
    v("padded", c.padded, "tokens_valid[0] says how many rows are real");
    v("capture", c.capture, "writes the chosen experts to captured");
    v("expert_w", c.expert_w, "type of the experts' weights");
    v("layout", c.layout, "how the experts' weights lie");
    v("gate_order", c.gate_order, "order of gate and up in the experts' weights and biases");
    v("act", c.act, "activation of the experts");
    v("alpha", c.alpha, "activation: slope inside the sigmoid");
    v("beta", c.beta, "activation: added to up");
    v("limit", c.limit, "activation: clamp");
    v("per_expert", c.per_expert, "act_params has alpha, beta, limit of each expert");
    v("up_bias", c.up_bias, "the experts add a bias before the activation");
    v("down_bias", c.down_bias, "the experts add a bias to their answers");
    v("shared_intermediate", c.shared_intermediate,
      "columns inside the shared expert, on this rank; 0: none");
    v("shared_w", c.shared_w, "type of the shared expert's weights");
    v("shared_as_slots", c.shared_as_slots, "the shared expert is one or several slots of every token");
    v("latent", c.latent, "columns that the experts read and write, between two projections; 0: hidden");
    v("residual", c.residual, "adds the residual stream");
    v("norm_x", c.norm_x, "norms x first");
    v("norm_y", c.norm_y, "writes y's RMS norm too, for the layer that follows");
    v("norm_eps", c.norm_eps, "of these norms: added to the mean square");
    v("x_unaligned", c.x_unaligned, "rows of x may begin anywhere, not only at multiples of 16 bytes");
  }
};

// The layer of a known model ("gpt-oss-120b", "deepseek-v4-flash", ...): shapes and arithmetic of its
// config.json. kInvalidArgument lists the names.
Result<MoeConfig> known_moe(std::string_view model);
std::string known_moe_names();

// The layout that a backend's expert kernels read: what MoeConfig::layout must be there.
WeightLayout layout_for(Backend backend);

// Routed experts that have weights here.
int64_t local_experts(const MoeConfig& config);

// Whether a layer with `capture` has its choice in MoeIo::captured alone: the router's ids as they are, without foreign experts and
// shared slots. Routing then captures nothing beside them, and kernels that cannot do that may run.
bool chooses_in_captured(const MoeConfig& config);

// Whether the shared expert can be slots: weights of the type of the routed ones, 1 to 8 times as wide.
bool shared_fits_slots(const MoeConfig& config);
// Slots of a token that its shared expert takes; 0 where there is none or it has a path of its own.
int64_t shared_slots(const MoeConfig& config);
// kInvalidArgument: shared_as_slots, and the shared expert does not fit.
Status check_shared(const MoeConfig& config);
// The same, and fields that contradict each other.
Status check_moe(const MoeConfig& config);

// The matrix products of the experts, shared slots included, and of the shared one on a path of its own, for no tokens yet:
// shapes of their weights.
struct ExpertProblems {
  ExpertGemm::Problem up, down, shared_up, shared_down;  // shared: unused without such a path
  ExpertGemm::Problem latent_in, latent_out;             // unused without a latent width
};
ExpertProblems expert_problems(const MoeConfig& config);

struct ExpertWeights {
  Tensor up, up_scale, up_bias;        // W13 (gate and up) as ExpertGemm wants w, w_scale, bias
  Tensor down, down_scale, down_bias;  // W2
  Tensor act_params;  // f32[experts, 3]: alpha, beta, limit of each, with MoeConfig::per_expert
};
struct MoeWeights {
  Tensor router, router_bias, correction_bias, hash_table, expert_map;
  // With adapters: [adapters, rank, hidden], [adapters, experts, rank], f32[adapters].
  Tensor lora_a, lora_b, lora_scale;
  ExpertWeights experts, shared;  // experts: local_experts(config) + shared_slots(config) of them
  Tensor latent_in,
      latent_out;  // with a latent width: [latent, hidden] and [hidden, latent], as ExpertGemm wants w
};
// Shapes of the weights that a config needs, by name ("experts.up_scale"): what a loader fills and a test
// makes.
std::vector<std::pair<SlotSpec, Tensor*>> weight_slots(const MoeConfig& config, MoeWeights* weights);

struct MoeIo {
  Tensor x;             // [tokens, hidden]
  Tensor residual;      // [tokens, hidden], with config.residual
  Tensor token_ids;     // i32[tokens], with method kHash
  Tensor adapter = {};  // i32[tokens], with adapters on the router: which one; -1: none
  // With input precomputed: i32 and f32 [tokens, top_k], an id below 0 is an empty slot; with input packed: i32[tokens, top_k],
  // id << 16 | bits of the weight in bf16.
  Tensor ids_in = {}, weights_in = {}, packed_in = {};
  Tensor tokens_valid = {};   // i32[1], with padded
  Tensor y;                   // [tokens, hidden]; may be residual, and with norm_x also x
  Tensor x_norm_weight = {};  // bf16 [hidden], with norm_x
  // With norm_y: bf16 [hidden], and [tokens, hidden], which may be x.
  Tensor norm_weight = {}, normed = {};
  Tensor captured =
      {};  // i32[tokens, top_k], with capture: the chosen experts by their numbers in the whole model
};
// What a call of `tokens` tokens takes and gives, by name ("token_ids"), as weight_slots() says it of weights: forward() checks its
// tensors against this list.
std::vector<std::pair<SlotSpec, Tensor*>> io_slots(const MoeConfig& config, int64_t tokens, MoeIo* io);

// What a call chose for its tokens: logits [tokens, experts] in MoeConfig::logits, ids i32 and weights f32 [tokens, slots], those
// of shared slots included. No logits where the caller gave the ids; no ids where they are in MoeIo::captured.
struct MoeChoice {
  Tensor logits, ids, weights;
};

// Kernels of the routed experts by name, for those alone: router, routing, shared expert and combine stay free. NAME or
// NAME:CONFIG of expert_gemm, which then computes each product, of grouped_mlp, which computes both, or of expert_mlp, which starts
// from ids and ends with the sum. The last part of a name will do ("mxfp4_tile_sm90"). Empty or "auto": the cost models choose.
struct MoeBackend {
  std::string decode = {}, prefill = {};
  int64_t decode_tokens = 64;  // a call of at most so many tokens is decode
};
// One phase, or two where decode and prefill differ. kInvalidArgument names the word, and the kernels of experts that this device
// has; also where `policy` wants one kernel for all counts and the phases would have two.
Result<std::vector<StepPhase>> phases_of(const MoeBackend& backend, const DeviceInfo& device,
                                         const Catalog& catalog, int64_t tokens_max, const Policy& policy);

// A layer planned for a device that need not be here.
Result<Step> plan_moe(const DeviceInfo& device, const Catalog& catalog, const MoeConfig& config,
                      int64_t tokens_max, const Policy& policy = {}, const MoeBackend& backend = {},
                      Gaps gaps = Gaps::kRefused);

// Values that a call leaves in its workspace.
struct MoeBetween {
  ValueId logits = kNoValue, ids = kNoValue, weights = kNoValue;
};

class Moe {
 public:
  // Plans for 0 to tokens_max tokens. Every reason of every refusal is in the error.
  static Result<std::unique_ptr<Moe>> plan(Device& device, const MoeConfig& config, int64_t tokens_max,
                                           const Policy& policy = {}, const MoeBackend& backend = {});
  ~Moe();
  Moe(const Moe&) = delete;
  Moe& operator=(const Moe&) = delete;

  const MoeConfig& config() const { return config_; }
  int64_t tokens_max() const { return tokens_max_; }
  size_t workspace_bytes() const { return step_->workspace_bytes(); }
  // Enqueues the layer. Recordable: no allocation, no synchronisation. Tensors of the wrong shape are refused
  // by name.
  Status forward(const MoeIo& io, const MoeWeights& weights, Workspace workspace, Stream stream,
                 KernelRuns* runs = nullptr) const;
  // Runs the layer stage by stage and holds each one to its double-precision reference on the inputs that it
  // really got, which it copies to the host first. Slow: meant for a few tokens, at load time and in tests.
  Result<std::vector<StageCheck>> check(const MoeIo& io, const MoeWeights& weights, Workspace workspace,
                                        Stream stream) const;
  // What runs at each count of tokens.
  const Step& step() const { return *step_; }
  // Where a call of `tokens` tokens leaves its choice in its workspace: valid until the next call there.
  MoeChoice choice(int64_t tokens, Workspace workspace) const;
  // (stage, kernel) in the order in which they run for `tokens` tokens; of stages that one kernel computes "router+route".
  std::vector<std::pair<std::string, std::string>> kernels(int64_t tokens) const;

 private:
  struct Bound;
  Moe(Device& device, const MoeConfig& config, int64_t tokens_max);
  Status check_call(const MoeIo& io) const;
  bool ids_stand_in(const Tensor& captured) const;
  Status copy_captured(const MoeIo& io, Workspace workspace, Stream stream) const;
  void bind(const MoeIo& io, const MoeWeights& weights, Bound* out) const;

  Device& device_;
  MoeConfig config_;
  int64_t tokens_max_;
  std::unique_ptr<const Step> step_;
  MoeBetween between_;
  std::vector<size_t> weights_at_;  // of each weight's tensor in MoeWeights, in bytes
  OwnedTensor zeros_;               // i32[tokens_max, 1]: the shared expert is expert 0 of every token
};

}  // namespace sluice
