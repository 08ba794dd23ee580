// The Mixture-of-Experts layer: router GEMM, top-k routing, grouping of rows by expert, experts, combine. The
// layer is a graph of stages (nn/moe/graph.h); for each token count, planning chooses the kernels with the
// lowest estimated cost.
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

// A layer's shape and arithmetic. A tensor-parallel slice has a smaller `intermediate`, an expert-parallel
// slice has scope kRange. As text (base/fields.h): "hidden=2880 experts=128 ...".
struct MoeConfig {
  int64_t hidden = 2880, intermediate = 2880, experts = 32, top_k = 4;
  // A dense MLP, computed as one expert that every token uses, without router and router weights. experts and top_k must be 1.
  bool dense = false;
  DType x = DType::kBF16;  // activations in and out
  DType g = DType::kBF16;  // each expert's output before summation; f32 if x is f32
  // Router.
  DType router_w = DType::kBF16, logits = DType::kF32;
  bool router_bias = false;
  // LoRA adapters, at most one per token: of rank lora_rank on the router (ops/lora_delta.h) and of rank expert_lora_rank on the routed
  // experts (ops/expert_lora.h); rank 0: none. expert_lora_split: gate and up have their own A, as in adapters of separate gate and up
  // projections. The experts' products then round to type g before the update is added.
  int64_t lora_rank = 0, lora_adapters = 0;
  DType lora_w = DType::kBF16;
  int64_t expert_lora_rank = 0;
  bool expert_lora_split = false;
  // Routing: see ops/route_topk.h. If the caller supplies ids and weights (kPrecomputed, kPacked), there is
  // no router, and only experts, top_k, scale, scope and the shared slots apply.
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
  // their y is the residual stream plus the output of a separate shared expert, each zero if absent.
  bool padded = false;
  // Writes the experts that each token chose to MoeIo::captured; with chooses_in_captured(), at no
  // cost.
  bool capture = false;
  // Experts: see ops/expert_gemm.h.
  DType expert_w = DType::kE2M1;
  WeightScales expert_scales = WeightScales::kMx;
  WeightLayout layout = WeightLayout::kPanels16;
  GateOrder gate_order = GateOrder::kInterleaved;
  Activation act = Activation::kSwiGlu;
  double alpha = 1, beta = 0, limit = 0;
  // ExpertWeights::act_params replaces alpha, beta and limit, which then apply only to a separate shared
  // expert.
  bool per_expert = false;
  // Biases of W13 and W2. Tensor-parallel ranks above 0 have no down_bias.
  bool up_bias = false, down_bias = false;
  // One shared expert for every token, with the same activation; 0: none.
  int64_t shared_intermediate = 0;
  DType shared_w = DType::kBF16;  // type of its weights, independent of expert_w
  WeightScales shared_scales = WeightScales::kMx;
  // Computes the shared expert as extra routed experts that every token chooses: parts of a routed expert's
  // size, stored after the routed experts in the `experts` weights, with router weight 1 regardless of
  // `scale`. Needs fewer launches than a separate shared expert. Requires shared_fits_slots().
  bool shared_as_slots = false;
  // Latent MoE (Nemotron 3 Super): a bf16 projection of x to this width precedes the routed experts, and a
  // second projection back to `hidden` follows their sum. Router and shared expert read x, not the
  // projection. 0: no projections.
  int64_t latent = 0;
  bool residual = false;  // adds the residual stream to the output
  // RMS norms around the layer (ops/rms_norm.h), fused into its kernels where that saves a launch. norm_x:
  // the layer first norms MoeIo::x with MoeIo::x_norm_weight. norm_y: the layer also writes MoeIo::normed,
  // the norm of y with MoeIo::norm_weight, for the next layer.
  bool norm_x = false, norm_y = false;
  double norm_eps = 1e-5;
  // Rows of x, residual, y and normed may begin at any element, not only at multiples of 16 bytes. Slower for
  // many tokens.
  bool x_unaligned = false;
  // The experts' products may round rows of their inputs to FP8 (fp8_x of ops/expert_gemm.h). Kernels do so only for counts of
  // tokens at which it is faster.
  bool fp8_activations = false;

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
    v("lora_adapters", c.lora_adapters, "adapters on the router and the experts, one of them for each token");
    v("lora_w", c.lora_w, "type of the adapters' matrices");
    v("expert_lora_rank", c.expert_lora_rank, "rank of the adapters on the experts; 0: none");
    v("expert_lora_split", c.expert_lora_split, "the adapters of gate and up have their own A");
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
    v("fp8_activations", c.fp8_activations, "the experts' products may round their inputs to FP8");
  }
};

// The layer of a known model ("gpt-oss-120b", "deepseek-v4-flash", ...), with the shapes and arithmetic of
// its config.json. kInvalidArgument lists the known names.
Result<MoeConfig> known_moe(std::string_view model);
std::string known_moe_names();

// The layout that a backend's expert kernels read; MoeConfig::layout must equal it on that backend.
WeightLayout layout_for(Backend backend);

// Number of routed experts whose weights this rank has.
int64_t local_experts(const MoeConfig& config);

// Whether routing can write its ids directly to MoeIo::captured instead of the workspace. Requires that the
// ids are ids of the whole model, so there must be neither expert parallelism nor shared slots. Then a
// routing kernel needs no support for RouteTopk's `capture`.
bool chooses_in_captured(const MoeConfig& config);

// Whether the shared expert can be computed as slots: its weights have the routed experts' type, and its
// width is 1 to 8 times theirs.
bool shared_fits_slots(const MoeConfig& config);
// Slots per token that the shared expert occupies; 0 if it is computed separately or there is none.
int64_t shared_slots(const MoeConfig& config);
// kInvalidArgument: shared_as_slots is set, but shared_fits_slots() is false.
Status check_shared(const MoeConfig& config);
// Runs check_shared(), and checks that the fields agree with each other.
Status check_moe(const MoeConfig& config);

// The matrix products of the layer, for 0 tokens; they define the shapes of the weights. `up` and `down`
// include the experts of shared slots.
struct ExpertProblems {
  ExpertGemm::Problem up, down, shared_up, shared_down;  // shared_*: unused without a separate shared expert
  ExpertGemm::Problem latent_in, latent_out;             // unused if latent is 0
};
ExpertProblems expert_problems(const MoeConfig& config);

struct ExpertWeights {
  Tensor up, up_scale, up_bias;        // W13 (gate and up): w, w_scale, bias of ExpertGemm
  Tensor down, down_scale, down_bias;  // W2
  Tensor act_params;  // with MoeConfig::per_expert: f32[experts, 3], each expert's alpha, beta, limit
};
struct MoeWeights {
  Tensor router, router_bias, correction_bias, hash_table, expert_map;
  // With router adapters: [adapters, rank, hidden], [adapters, experts, rank], f32[adapters].
  Tensor lora_a, lora_b, lora_scale;
  // With adapters of the experts: a and b of ops/expert_lora.h for both products, and f32[adapters].
  struct ExpertAdapters {
    Tensor up_a, up_b, down_a, down_b, scale;
  };
  ExpertAdapters expert_adapters;
  ExpertWeights experts, shared;  // `experts` holds local_experts(config) + shared_slots(config) experts
  // With latent > 0: `w` of ExpertGemm, [latent, hidden] and [hidden, latent].
  Tensor latent_in, latent_out;
};
// The weights of a layer with their names ("experts.up_scale") and shapes, which loaders fill. Slots that the
// config does not need have used = false.
std::vector<std::pair<SlotSpec, Tensor*>> weight_slots(const MoeConfig& config, MoeWeights* weights);

struct MoeIo {
  Tensor x;             // [tokens, hidden]
  Tensor residual;      // [tokens, hidden], with config.residual
  Tensor token_ids;     // i32[tokens], with method kHash
  Tensor adapter = {};  // i32[tokens], with adapters: each token's adapter; -1: none
  // kPrecomputed: i32 and f32 [tokens, top_k]; a negative id is an empty slot. kPacked: i32[tokens, top_k],
  // id << 16 | bits of the weight in bf16.
  Tensor ids_in = {}, weights_in = {}, packed_in = {};
  Tensor tokens_valid = {};   // i32[1], with config.padded
  Tensor y;                   // [tokens, hidden]; may alias residual, with norm_x also x
  Tensor x_norm_weight = {};  // bf16 [hidden], with norm_x
  // With norm_y: norm_weight bf16 [hidden]; normed [tokens, hidden], which may alias x.
  Tensor norm_weight = {}, normed = {};
  // With capture: i32[tokens, top_k], receives the chosen experts as ids in the whole model.
  Tensor captured = {};
};
// The inputs and outputs of a call with `tokens` tokens, with their names ("token_ids") and shapes. forward()
// checks its tensors against this list.
std::vector<std::pair<SlotSpec, Tensor*>> io_slots(const MoeConfig& config, int64_t tokens, MoeIo* io);

// The routing result of a call: logits [tokens, experts] of type MoeConfig::logits; ids i32 and weights f32
// [tokens, slots], including shared slots. logits is absent if the caller supplied the ids; ids is absent if
// chooses_in_captured().
struct MoeChoice {
  Tensor logits, ids, weights;
};

// Forces kernels of the routed experts; all other stages keep the kernels that the cost models choose. A
// value is NAME or NAME:CONFIG of a kernel of expert_gemm (each product separately), grouped_mlp (both
// products fused) or expert_mlp (everything from ids to the weighted sum fused). The last part of a name
// suffices ("mxfp4_tile_sm90"). Empty or "auto": the cost models choose.
struct MoeBackend {
  std::string decode = {}, prefill = {};
  int64_t decode_tokens = 64;  // calls of at most this many tokens use `decode`, others `prefill`
};
// Returns one phase, or two if decode and prefill differ. kInvalidArgument: a name is unknown (the message
// lists the device's expert kernels), or `policy` requires one kernel for all token counts and the phases
// differ.
Result<std::vector<StepPhase>> phases_of(const MoeBackend& backend, const DeviceInfo& device,
                                         const Catalog& catalog, int64_t tokens_max, const Policy& policy);

// kInvalidArgument: config.fp8_activations is set, but no kernel of the device rounds the inputs of these experts' products.
Status check_fp8_activations(const MoeConfig& config, const DeviceInfo& device, const Catalog& catalog);

// Plans a layer without a device object, for example for a GPU that this machine does not have.
Result<Step> plan_moe(const DeviceInfo& device, const Catalog& catalog, const MoeConfig& config,
                      int64_t tokens_max, const Policy& policy = {}, const MoeBackend& backend = {},
                      Gaps gaps = Gaps::kRefused);

// Values that a call leaves in its workspace.
struct MoeBetween {
  ValueId logits = kNoValue, ids = kNoValue, weights = kNoValue;
};

class Moe {
 public:
  // Plans for 0 to tokens_max tokens. If no kernel fits, the error lists every reason of every kernel.
  static Result<std::unique_ptr<Moe>> plan(Device& device, const MoeConfig& config, int64_t tokens_max,
                                           const Policy& policy = {}, const MoeBackend& backend = {});
  ~Moe();
  Moe(const Moe&) = delete;
  Moe& operator=(const Moe&) = delete;

  const MoeConfig& config() const { return config_; }
  int64_t tokens_max() const { return tokens_max_; }
  size_t workspace_bytes() const { return step_->workspace_bytes(); }
  // Enqueues the layer. Neither allocates nor synchronizes, so it may be captured in a graph.
  // kInvalidArgument names a tensor of the wrong shape.
  Status forward(const MoeIo& io, const MoeWeights& weights, Workspace workspace, Stream stream,
                 KernelRuns* runs = nullptr) const;
  // Runs the layer stage by stage, and compares each stage with its double-precision reference on the same
  // inputs, which are copied to the host. Slow: meant for a few tokens, at load time and in tests.
  Result<std::vector<StageCheck>> check(const MoeIo& io, const MoeWeights& weights, Workspace workspace,
                                        Stream stream) const;
  // The plan, which gives the kernels for each token count.
  const Step& step() const { return *step_; }
  // The routing result of a call with `tokens` tokens. The tensors lie in the call's workspace and are valid
  // until the next call with that workspace.
  MoeChoice choice(int64_t tokens, Workspace workspace) const;
  // Returns (stage, kernel) pairs in execution order for `tokens` tokens. The stages of a fused kernel are
  // joined: "router+route".
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
  std::vector<size_t> weights_at_;  // byte offset of each weight's tensor in MoeWeights
  OwnedTensor zeros_;               // i32[tokens_max, 1]: expert ids of dense layers
};

}  // namespace sluice
