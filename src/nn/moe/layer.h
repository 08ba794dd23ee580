// The Mixture-of-Experts layer: router, routing and grouping, experts, combine. The layer is a graph of
// stages (nn/moe/graph.h); for each token count, planning chooses the cheapest kernels.
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

// A layer's shape and arithmetic. Tensor- and expert-parallel slices are expressed as data: a smaller
// `intermediate`, a scope. As text (base/fields.h): "hidden=2880 experts=128 ...".
struct MoeConfig {
  int64_t hidden = 2880, intermediate = 2880, experts = 32, top_k = 4;
  // A dense MLP: a single expert whose output every token gets unweighted. No router; experts and top_k are 1.
  bool dense = false;
  DType x = DType::kBF16;  // activations in and out
  DType g = DType::kBF16;  // each expert's output before summation; f32 if x is f32
  // Router.
  DType router_w = DType::kBF16, logits = DType::kF32;
  bool router_bias = false;
  // LoRA adapters of the router (ops/lora_delta.h), at most one per token; lora_rank 0: no adapters.
  int64_t lora_rank = 0, lora_adapters = 0;
  DType lora_w = DType::kBF16;
  // Routing: see ops/route_topk.h. If the caller supplies ids and weights (precomputed, packed), there is
  // no router, and of these fields only experts, top_k, scale, scope and the shared slots apply.
  RoutingInput input = RoutingInput::kLogits;
  RoutingMethod method = RoutingMethod::kRenormalize;
  bool correction_bias = false;
  int64_t groups = 1, topk_groups = 1;
  double scale = 1;
  int64_t hash_vocab = 0;  // method kHash: rows of its table, one per token id
  ExpertScope scope = ExpertScope::kAll;
  int64_t expert_begin = 0, expert_count = 0;  // scope kRange: the experts of this rank
  bool weight_on_input = false;                // Llama 4
  // Only the first tokens_valid[0] rows are valid. The other rows get no routed experts and no shared slots:
  // their y is the residual stream plus the result of a separate shared expert, or zero.
  bool padded = false;
  // Writes the experts that each token chose to MoeIo::captured. Free if chooses_in_captured().
  bool capture = false;
  // Experts: see ops/expert_gemm.h.
  DType expert_w = DType::kE2M1;
  WeightScales expert_scales = WeightScales::kMx;
  WeightLayout layout = WeightLayout::kPanels16;
  GateOrder gate_order = GateOrder::kInterleaved;
  Activation act = Activation::kSwiGlu;
  double alpha = 1, beta = 0, limit = 0;
  // ExpertWeights::act_params replaces alpha, beta and limit, which then apply only to a separate shared expert
  bool per_expert = false;
  // biases of W13 and W2; tensor-parallel ranks above 0 omit down_bias
  bool up_bias = false, down_bias = false;
  // One shared expert for every token, with the same activation; 0: none.
  int64_t shared_intermediate = 0;
  DType shared_w = DType::kBF16;  // type of its weights: bf16 even if the experts are MXFP4
  WeightScales shared_scales = WeightScales::kMx;
  // Computes the shared expert as one or more extra slots of every token: parts of a routed expert's size,
  // stored after the routed experts in the `experts` weights, with weight 1 regardless of `scale`. Takes
  // fewer launches than a separate path; needs shared_fits_slots().
  bool shared_as_slots = false;
  // Width of the experts' input and output if bf16 projections surround the experts: one projects x, one projects the
  // experts' sum (Nemotron 3 Super). Router and shared expert still read x itself. 0: the experts read x too.
  int64_t latent = 0;
  bool residual = false;  // adds the residual stream to the output
  // Norms around the layer (ops/rms_norm.h), fused into its kernels where that saves a launch. norm_x: the
  // layer reads the norm of MoeIo::x with MoeIo::x_norm_weight. norm_y: the layer also writes
  // MoeIo::normed, the norm of y with MoeIo::norm_weight, for the next layer.
  bool norm_x = false, norm_y = false;
  double norm_eps = 1e-5;
  // rows of x, residual, y and normed may begin at any element, not only at multiples of 16 bytes; slower for many tokens
  bool x_unaligned = false;

  bool operator==(const MoeConfig&) const = default;
  template <class V, class C>
  static void fields(V& v, C& c) {
    v("hidden", c.hidden, "columns of x and y");
    v("intermediate", c.intermediate, "columns between an expert's two products, on this rank");
    v("experts", c.experts, "routed experts, on all ranks");
    v("top_k", c.top_k, "experts for each token");
    v("dense", c.dense, "a dense MLP: one expert for all tokens, without a router");
    v("x", c.x, "type of the activations in and out");
    v("g", c.g, "type of each expert's output before summation");
    v("router_w", c.router_w, "type of the router's weights and its bias");
    v("logits", c.logits, "type of the router's scores");
    v("router_bias", c.router_bias, "the router adds a bias");
    v("lora_rank", c.lora_rank, "rank of the adapters on the router; 0: none");
    v("lora_adapters", c.lora_adapters, "adapters on the router, one of them for each token");
    v("lora_w", c.lora_w, "type of the adapters' matrices");
    v("input", c.input, "logits, or ids and weights that the caller gives");
    v("method", c.method, "how experts are chosen and weighted");
    v("correction_bias", c.correction_bias, "adds a bias when experts are chosen, but not to their weights");
    v("groups", c.groups, "groups of neighbouring experts");
    v("topk_groups", c.topk_groups, "groups whose experts may be chosen");
    v("scale", c.scale, "routed scaling factor");
    v("hash_vocab", c.hash_vocab, "method=hash: rows of its table, one per token id");
    v("scope", c.scope, "the experts whose weights this rank has");
    v("expert_begin", c.expert_begin, "scope=range: the first expert of this rank");
    v("expert_count", c.expert_count, "scope=range: experts of this rank");
    v("weight_on_input", c.weight_on_input, "router weights multiply the experts' input");
    v("padded", c.padded, "only the first tokens_valid[0] rows are valid");
    v("capture", c.capture, "writes the chosen experts to captured");
    v("expert_w", c.expert_w, "type of the experts' weights");
    v("expert_scales", c.expert_scales, "scales of e2m1 or e4m3 experts");
    v("layout", c.layout, "layout of the experts' weights");
    v("gate_order", c.gate_order, "order of gate and up in the experts' weights and biases");
    v("act", c.act, "activation of the experts");
    v("alpha", c.alpha, "activation: slope inside the sigmoid");
    v("beta", c.beta, "activation: added to up");
    v("limit", c.limit, "activation: clamp");
    v("per_expert", c.per_expert, "act_params has alpha, beta, limit of each expert");
    v("up_bias", c.up_bias, "the experts add a bias before the activation");
    v("down_bias", c.down_bias, "the experts add a bias to their output");
    v("shared_intermediate", c.shared_intermediate,
      "intermediate columns of the shared expert, on this rank; 0: none");
    v("shared_w", c.shared_w, "type of the shared expert's weights");
    v("shared_scales", c.shared_scales, "scales of an e2m1 or e4m3 shared expert");
    v("shared_as_slots", c.shared_as_slots, "computes the shared expert as extra slots of every token");
    v("latent", c.latent, "width of the experts' input and output, between two projections; 0: hidden");
    v("residual", c.residual, "adds the residual stream");
    v("norm_x", c.norm_x, "applies RMS norm to x first");
    v("norm_y", c.norm_y, "also writes y's RMS norm, for the next layer");
    v("norm_eps", c.norm_eps, "epsilon of these norms");
    v("x_unaligned", c.x_unaligned, "rows of x may begin anywhere, not only at multiples of 16 bytes");
  }
};

// The layer of a known model ("gpt-oss-120b", "deepseek-v4-flash", ...), with the shapes and arithmetic of its
// config.json. kInvalidArgument lists the known names.
Result<MoeConfig> known_moe(std::string_view model);
std::string known_moe_names();

// The layout that a backend's expert kernels read; MoeConfig::layout must equal it on that backend.
WeightLayout layout_for(Backend backend);

// Number of routed experts whose weights are here.
int64_t local_experts(const MoeConfig& config);

// Whether a layer with `capture` keeps the chosen experts only in MoeIo::captured: the router's ids as they are,
// without experts of other ranks and shared slots. Routing then captures nothing separately, so kernels
// that cannot capture may run.
bool chooses_in_captured(const MoeConfig& config);

// Whether the shared expert can become slots: its weights have the routed experts' type, and it is 1 to 8 times as wide.
bool shared_fits_slots(const MoeConfig& config);
// Slots per token that the shared expert takes; 0 if there is none or it has a separate path.
int64_t shared_slots(const MoeConfig& config);
// kInvalidArgument: shared_as_slots is set, but the shared expert does not fit.
Status check_shared(const MoeConfig& config);
// Runs check_shared() and checks for fields that contradict each other.
Status check_moe(const MoeConfig& config);

// The matrix products of the experts (shared slots included) and of a separate shared expert,
// for zero tokens: they define the shapes of the weights.
struct ExpertProblems {
  ExpertGemm::Problem up, down, shared_up, shared_down;  // shared: unused without a separate path
  ExpertGemm::Problem latent_in, latent_out;             // unused without a latent width
};
ExpertProblems expert_problems(const MoeConfig& config);

struct ExpertWeights {
  Tensor up, up_scale, up_bias;        // W13 (gate and up): w, w_scale, bias of ExpertGemm
  Tensor down, down_scale, down_bias;  // W2
  Tensor act_params;  // with MoeConfig::per_expert: f32[experts, 3], alpha, beta and limit of each expert
};
struct MoeWeights {
  Tensor router, router_bias, correction_bias, hash_table, expert_map;
  // With adapters: [adapters, rank, hidden], [adapters, experts, rank], f32[adapters].
  Tensor lora_a, lora_b, lora_scale;
  ExpertWeights experts, shared;  // experts: local_experts(config) + shared_slots(config) of them
  // with a latent width: `w` of ExpertGemm, [latent, hidden] and [hidden, latent]
  Tensor latent_in, latent_out;
};
// The weights that a config needs, by name ("experts.up_scale") with their shapes: the list that loaders and tests fill.
std::vector<std::pair<SlotSpec, Tensor*>> weight_slots(const MoeConfig& config, MoeWeights* weights);

struct MoeIo {
  Tensor x;             // [tokens, hidden]
  Tensor residual;      // [tokens, hidden], with config.residual
  Tensor token_ids;     // i32[tokens], with method kHash
  Tensor adapter = {};  // i32[tokens], with router adapters: adapter of each token; -1: none
  // With input precomputed: i32 and f32 [tokens, top_k]; a negative id is an empty slot. With input packed:
  // i32[tokens, top_k], id << 16
  //  bits of the weight in bf16.
  Tensor ids_in = {}, weights_in = {}, packed_in = {};
  Tensor tokens_valid = {};   // i32[1], with padded
  Tensor y;                   // [tokens, hidden]; may alias residual, and with norm_x also x
  Tensor x_norm_weight = {};  // bf16 [hidden], with norm_x
  // With norm_y: bf16 [hidden]; and [tokens, hidden], which may alias x.
  Tensor norm_weight = {}, normed = {};
  // i32[tokens, top_k], with capture: the chosen experts by their numbers in the whole model
  Tensor captured = {};
};
// The inputs and outputs of a call of `tokens` tokens by name ("token_ids"), like weight_slots() for
// weights. forward() checks its tensors against this list.
std::vector<std::pair<SlotSpec, Tensor*>> io_slots(const MoeConfig& config, int64_t tokens, MoeIo* io);

// The routing result of a call: logits [tokens, experts] in MoeConfig::logits; ids i32 and weights f32 [tokens,
// slots], shared slots included. No logits if the caller gave the ids; no ids if they are in MoeIo::captured.
struct MoeChoice {
  Tensor logits, ids, weights;
};

// Names the kernels of the routed experts. Router, routing, shared expert and combine choose freely. Give NAME or
// NAME:CONFIG of expert_gemm (computes each product separately), grouped_mlp (computes both products), or expert_mlp
// (computes everything from ids to the sum). The last part of a name suffices ("mxfp4_tile_sm90"). Empty or "auto": the cost
// models choose.
struct MoeBackend {
  std::string decode = {}, prefill = {};
  int64_t decode_tokens = 64;  // calls of at most this many tokens use `decode`, others `prefill`
};
// Returns one phase, or two if decode and prefill differ. kInvalidArgument gives the unknown name and lists the device's
// expert kernels. It is also returned if `policy` wants one kernel for all counts but the phases would use two.
Result<std::vector<StepPhase>> phases_of(const MoeBackend& backend, const DeviceInfo& device,
                                         const Catalog& catalog, int64_t tokens_max, const Policy& policy);

// Plans a layer for a device that may be absent.
Result<Step> plan_moe(const DeviceInfo& device, const Catalog& catalog, const MoeConfig& config,
                      int64_t tokens_max, const Policy& policy = {}, const MoeBackend& backend = {},
                      Gaps gaps = Gaps::kRefused);

// Values that a call leaves in its workspace.
struct MoeBetween {
  ValueId logits = kNoValue, ids = kNoValue, weights = kNoValue;
};

class Moe {
 public:
  // Plans for 0 to tokens_max tokens. An error lists every reason of every refusal.
  static Result<std::unique_ptr<Moe>> plan(Device& device, const MoeConfig& config, int64_t tokens_max,
                                           const Policy& policy = {}, const MoeBackend& backend = {});
  ~Moe();
  Moe(const Moe&) = delete;
  Moe& operator=(const Moe&) = delete;

  const MoeConfig& config() const { return config_; }
  int64_t tokens_max() const { return tokens_max_; }
  size_t workspace_bytes() const { return step_->workspace_bytes(); }
  // Enqueues the layer. May be captured: it neither allocates nor synchronizes. The error for a tensor of the wrong shape names the
  // tensor.
  Status forward(const MoeIo& io, const MoeWeights& weights, Workspace workspace, Stream stream,
                 KernelRuns* runs = nullptr) const;
  // Runs the layer stage by stage and compares each stage with its double-precision reference on the stage's
  // actual inputs, which it copies to the host first. Slow: meant for a few tokens, at load time and in tests.
  Result<std::vector<StageCheck>> check(const MoeIo& io, const MoeWeights& weights, Workspace workspace,
                                        Stream stream) const;
  // The kernels at each token count.
  const Step& step() const { return *step_; }
  // The routing result of a call of `tokens` tokens in its workspace: valid until the next call with that workspace.
  MoeChoice choice(int64_t tokens, Workspace workspace) const;
  // Returns (stage, kernel) in execution order for `tokens` tokens; stages of a fused kernel appear as "router+route".
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
  std::vector<size_t> weights_at_;  // offset of each weight's tensor in MoeWeights, in bytes
  OwnedTensor zeros_;               // i32[tokens_max, 1]: the shared expert is expert 0 of every token
};

}  // namespace sluice
