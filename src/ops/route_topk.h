#pragma once
#include "ops/op.h"

namespace sluice {

// How a model turns logits into experts and weights. The names are the usual names in the field;
// routing_rule() splits a method into its parts.
enum class RoutingMethod : uint8_t {
  kRenormalize,       // gpt-oss, Mixtral: top-k, then softmax over the chosen experts
  kRenormalizeNaive,  // Qwen3: softmax over all experts, top-k, divided by the sum of the chosen
  kDefault,           // Qwen2-MoE: softmax over all experts, top-k, unchanged
  kDeepSeekV3,        // sigmoid, chooses with bias, groups ranked by the sum of their two best, renormalized
  kGroupedSoftmax,    // DeepSeek V2: softmax over all experts, groups ranked by their best
  kSqrtSoftplus,      // DeepSeek V4: sqrt(softplus), chooses with bias, renormalized
  kHash,              // DeepSeek V4's first layers: experts by token id, weights as in kSqrtSoftplus
  kMiniMax2,          // sigmoid, chooses with bias, renormalized, no groups
  kLlama4,            // top-k of the logits, each through a sigmoid
  kTopK,              // top-k of the logits, unchanged
  kSigmoid,           // sigmoid, top-k, unchanged
  kSigmoidRenorm,     // sigmoid, top-k, divided by their sum
};
template <>
struct EnumWords<RoutingMethod> {
  static constexpr std::string_view words[] = {
      "renormalize", "renormalize_naive", "default", "deepseek_v3", "grouped_softmax", "sqrt_softplus",
      "hash",        "minimax2",          "llama4",  "topk",        "sigmoid",         "sigmoid_renorm"};
};

enum class RoutingInput : uint8_t {
  kLogits,
  kPrecomputed,  // the caller supplies ids_in and weights_in
  kPacked,       // packed_in: i32 = id << 16 | bits of the weight in bf16 (FlashInfer's PackedPrecomputed)
};
template <>
struct EnumWords<RoutingInput> {
  static constexpr std::string_view words[] = {"logits", "precomputed", "packed"};
};

// How an expert's id is translated on output.
enum class ExpertScope : uint8_t {
  kAll,    // ids are unchanged
  kRange,  // expert-parallel: id - expert_begin inside [expert_begin, expert_begin + expert_count), else -1
  kMap,    // expert_map[id]; if that is negative, the expert is on another rank: -1
};
template <>
struct EnumWords<ExpertScope> {
  static constexpr std::string_view words[] = {"all", "range", "map"};
};

// The parts of a routing method.
struct RoutingRule {
  enum class Score : uint8_t { kLogit, kSoftmaxAll, kSigmoid, kSqrtSoftplus } score;
  enum class Weigh : uint8_t { kScore, kRenormalize, kSoftmaxChosen, kSigmoid } weigh;
  bool biased;   // chooses by score + bias
  bool grouped;  // uses groups and topk_groups
  bool by_hash;  // chooses by table
};
RoutingRule routing_rule(RoutingMethod method);

// Chooses top_k experts for each token and gives each expert a weight.
//
// Choice. With s = score(logits[t, e]) and c = s (+ bias[e]):
//   ids[t, :]  the top_k largest c, largest first.
//   Equal c (-0 equals +0): the lower expert first. NaN ranks below -inf; among NaN the lower expert first.
//   Without a bias, c is the logit itself, because exact scores have the order of the logits; except for
//   kDeepSeekV3 with groups > 1, which sums scores. If c is a score (chooses_by_score), s is the f32
//   number that ops/score_math.h defines to the bit, and c = s + bias is one f32 addition, so every backend
//   chooses the same experts, near-ties included.
//
//   Groups: each group has experts / groups neighboring experts. A group's score is the sum (one f32
//   addition) of its two largest c (kDeepSeekV3; of its only c if the group has one expert) or its largest c
//   (kGroupedSoftmax). The topk_groups groups with the largest scores stay eligible; ties go to the lower
//   group, and a NaN score is below -inf.
//
//   kHash: ids[t, :] = hash_table[token_ids[t], :]; a token id outside [0, vocab) or an expert outside
//   [0, experts) gives -1 and weight 0.
//
// Weights. w = s[id] without the bias, then by rule: unchanged; / (sum_k + 1e-20); softmax over the chosen
//   logits; sigmoid of the logit. Then, with scale_here, * scale. f32.
//
// Slots. shared_slots slots follow the top_k slots. Shared slot j (from 0) has id experts + j. Its weight is 1
//   with scale_here; otherwise it is 1 / scale, which combine's scale turns into 1.
//
// Scope. `scope` translates the ids of routed experts; an expert of another rank gets id -1 and keeps its
//   weight.
//   Shared slots: under kRange their id is expert_count + j, under kMap and kAll it is experts + j.
//
// Padding. Rows at or beyond tokens_valid[0] get ids -1, weights 0, captured -1, shared slots included.
//
// Capture. captured[t, k]: the chosen expert before scope (and without shared slots); -1 if there is none.
//
// Precomputed. ids_in, weights_in (or packed_in) replace choice and weights; an id outside [0, experts)
//   becomes -1 with weight 0. Weights are not renormalized; scale_here multiplies them by scale.
//
// Shapes     logits [tokens, experts] f32 or bf16, rows may be strided; bias f32[experts]; hash_table
//            i32[vocab, top_k]; token_ids i32[tokens]; expert_map i32[experts]; tokens_valid i32[1]; ids
//            i32[tokens, top_k + shared_slots], weights f32 likewise; captured i32[tokens, top_k].
//            experts <= 1024, top_k <= min(32, experts), shared_slots <= 8, groups divides experts,
//            top_k <= topk_groups * experts / groups. tokens == 0 is legal and writes nothing.
// NaN        in the logits: chosen last; a weight whose formula contains NaN is NaN (softmax over all: every
//            weight of that row).
// Bytes      reads the logits once, writes ids and weights once.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  ids, captured: equal to the reference. weights: |w - ref| <= (n + 24 + |logit - max|) * 2^-23 *
//            |ref|, n the length of the sum; the reference computes the exact bound for each element.
// Source     openai/gpt-oss MLPBlock; DeepSeek-V2 and V3 MoEGate.forward (V3: noaux_tc); DeepSeek-V4 Gate;
//            MiniMax-M2; Llama 4 Router; FlashInfer tllm_enums.py RoutingMethodType for the names.
struct RouteTopk {
  static constexpr std::string_view kName = "route_topk";
  static constexpr std::string_view kSummary =
      "chooses experts for each token and gives each of them a weight";
  struct Problem {
    int64_t tokens = 1, experts = 128, top_k = 4;
    RoutingMethod method = RoutingMethod::kRenormalize;
    RoutingInput input = RoutingInput::kLogits;
    DType logits = DType::kF32;
    bool bias = false;
    int64_t groups = 1, topk_groups = 1;
    double scale = 1;
    bool scale_here = true;
    int64_t shared_slots = 0;
    ExpertScope scope = ExpertScope::kAll;
    int64_t expert_begin = 0, expert_count = 0;
    int64_t vocab = 0;
    bool padded = false;
    bool capture = false;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "rows of logits");
      v("experts", p.experts, "columns of logits");
      v("top_k", p.top_k, "experts for each token");
      v("method", p.method, "how experts are chosen and weighted");
      v("input", p.input, "logits, or ids and weights from the caller");
      v("logits", p.logits, "type of the logits");
      v("bias", p.bias, "adds a correction bias when experts are chosen, but not to their weights");
      v("groups", p.groups, "groups of neighbouring experts");
      v("topk_groups", p.topk_groups, "groups whose experts may be chosen");
      v("scale", p.scale, "routed scaling factor");
      v("scale_here", p.scale_here, "multiplies the weights by scale (otherwise combine does)");
      v("shared_slots", p.shared_slots, "slots for fused shared experts");
      v("scope", p.scope, "the experts whose weights this rank has");
      v("expert_begin", p.expert_begin, "scope=range: first expert of this rank");
      v("expert_count", p.expert_count, "scope=range: experts of this rank");
      v("vocab", p.vocab, "method=hash: rows of hash_table");
      v("padded", p.padded, "only the first tokens_valid[0] rows are valid");
      v("capture", p.capture, "writes the chosen experts to captured");
    }
  };
  struct Args {
    Tensor logits, bias, hash_table, token_ids, expert_map, tokens_valid, ids_in, weights_in, packed_in;
    Tensor ids, weights, captured;
  };
  // Whether c in the comment above is a score of score_math.h (+ bias); otherwise c is the logit.
  static bool chooses_by_score(const Problem& p) {
    return p.bias || (p.method == RoutingMethod::kDeepSeekV3 && p.groups > 1);
  }
  // Whether the input is logits, which every method reads (kHash for its weights).
  static bool reads_logits(const Problem& p) { return p.input == RoutingInput::kLogits; }
  template <class V>
  static void slots(const Problem& p, V v) {
    const bool from_logits = reads_logits(p), hash = from_logits && p.method == RoutingMethod::kHash;
    const int64_t all = p.top_k + p.shared_slots;
    v(slot("logits", Role::kIn, p.logits, {p.tokens, p.experts}, from_logits, Rows::kMayBeStrided),
      &Args::logits);
    v(slot("bias", Role::kIn, DType::kF32, {p.experts}, from_logits && p.bias), &Args::bias);
    v(slot("hash_table", Role::kIn, DType::kI32, {p.vocab, p.top_k}, hash), &Args::hash_table);
    v(slot("token_ids", Role::kIn, DType::kI32, {p.tokens}, hash), &Args::token_ids);
    v(slot("expert_map", Role::kIn, DType::kI32, {p.experts}, p.scope == ExpertScope::kMap),
      &Args::expert_map);
    v(slot("tokens_valid", Role::kIn, DType::kI32, {1}, p.padded), &Args::tokens_valid);
    const bool unpacked = p.input == RoutingInput::kPrecomputed;
    v(slot("ids_in", Role::kIn, DType::kI32, {p.tokens, p.top_k}, unpacked), &Args::ids_in);
    v(slot("weights_in", Role::kIn, DType::kF32, {p.tokens, p.top_k}, unpacked), &Args::weights_in);
    v(slot("packed_in", Role::kIn, DType::kI32, {p.tokens, p.top_k}, p.input == RoutingInput::kPacked),
      &Args::packed_in);
    v(slot("ids", Role::kOut, DType::kI32, {p.tokens, all}), &Args::ids);
    v(slot("weights", Role::kOut, DType::kF32, {p.tokens, all}), &Args::weights);
    v(slot("captured", Role::kOut, DType::kI32, {p.tokens, p.top_k}, p.capture), &Args::captured);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem&) { return 0; }  // not counted: bytes dominate
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const RouteTopk::Problem& problem, const RouteTopk::Args& args);

}  // namespace sluice
