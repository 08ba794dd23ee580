// The experts' shapes by model, and the sizes of their GEMMs.
#include <deque>
#include <string>

#include "cuda/experts/experts.h"
#include "graph/runs.h"
#include "nn/moe/graph.h"

namespace sluice::bench {
namespace {

// The shapes of gpt-oss and DeepSeek V4.
ExpertShape gpt_oss(const char* model, int64_t experts) {
  return {.model = model,
          .top_k = 4,
          .hidden = 2880,
          .intermediate = 2880,
          .w = DType::kE2M1,
          .act = Activation::kSwiGluClamped,
          .alpha = 1.702,
          .beta = 1,
          .limit = 7,
          .order = GateOrder::kInterleaved,
          .biases = true,
          .route = {.experts = experts, .top_k = 4, .method = RoutingMethod::kRenormalize}};
}
ExpertShape deepseek_v4(const char* model, int64_t experts, int64_t hidden, int64_t intermediate) {
  return {.model = model,
          .top_k = 6,
          .hidden = hidden,
          .intermediate = intermediate,
          .w = DType::kE2M1,
          .act = Activation::kSwiGluClamped,
          .limit = 10,
          .route = {.experts = experts,
                    .top_k = 6,
                    .method = RoutingMethod::kSqrtSoftplus,
                    .bias = true,
                    .scale = 1.5}};
}

ExpertShape deepseek_v3(const char* model) {
  return {.model = model,
          .top_k = 8,
          .hidden = 7168,
          .intermediate = 2048,
          .w = DType::kBF16,
          .act = Activation::kSwiGlu,
          .route = {.experts = 256,
                    .top_k = 8,
                    .method = RoutingMethod::kDeepSeekV3,
                    .bias = true,
                    .groups = 8,
                    .topk_groups = 4,
                    .scale = 2.5}};
}
ExpertShape qwen3(const char* model, int64_t hidden, int64_t intermediate, int64_t experts = 128,
                  int64_t top_k = 8) {
  return {.model = model,
          .top_k = top_k,
          .hidden = hidden,
          .intermediate = intermediate,
          .w = DType::kBF16,
          .act = Activation::kSwiGlu,
          .route = {.experts = experts, .top_k = top_k, .method = RoutingMethod::kRenormalizeNaive}};
}
ExpertShape glm(const char* model, int64_t hidden, int64_t intermediate, int64_t experts) {
  return {.model = model,
          .top_k = 8,
          .hidden = hidden,
          .intermediate = intermediate,
          .w = DType::kBF16,
          .act = Activation::kSwiGlu,
          .route = {.experts = experts, .top_k = 8, .method = RoutingMethod::kDeepSeekV3, .bias = true}};
}
ExpertShape held_out(ExpertShape shape) { return shape.held_out = true, shape; }

}  // namespace

std::vector<ExpertShape> mxfp4_shapes() {
  ExpertShape few = gpt_oss("held-out-3072x1536", 64),
              many = deepseek_v4("held-out-5120x1024", 160, 5120, 1024);
  few.hidden = 3072, few.intermediate = 1536;
  many.top_k = many.route.top_k = 8;
  return {gpt_oss("gpt-oss-120b", 128),
          deepseek_v4("deepseek-v4-flash", 256, 4096, 2048),
          gpt_oss("gpt-oss-20b", 32),
          deepseek_v4("deepseek-v4-pro-tp8", 384, 7168, 384),
          deepseek_v4("deepseek-v4-pro", 384, 7168, 3072),
          held_out(few),
          held_out(many)};
}

std::vector<ExpertShape> bf16_shapes() {
  ExpertShape whole = deepseek_v3("deepseek-v3"), part = deepseek_v3("deepseek-v3-ep8");
  whole.shared = 1;
  part.route.scope = ExpertScope::kRange;
  part.route.expert_count = part.route.experts / 8;
  ExpertShape air = glm("glm-4.5-air", 4096, 1408, 128);
  air.shared = 1;
  const ExpertShape nemotron{
      .model = "nemotron-3-nano",
      .top_k = 6,
      .hidden = 2688,
      .intermediate = 1856,
      .w = DType::kBF16,
      .act = Activation::kRelu2,
      .route = {
          .experts = 128, .top_k = 6, .method = RoutingMethod::kDeepSeekV3, .bias = true, .scale = 2.5}};
  return {whole,
          nemotron,
          qwen3("qwen3-30b-a3b", 2048, 768),
          part,
          qwen3("qwen3-235b-a22b-tp8", 4096, 192),
          air,
          held_out(qwen3("held-out-3584x1280", 3584, 1280, 96, 6)),
          held_out(glm("held-out-5120x640", 5120, 640, 192))};
}

std::vector<ExpertShape> format_shapes() {
  ExpertShape part = deepseek_v3("deepseek-v3-ep8");
  part.route.scope = ExpertScope::kRange;
  part.route.expert_count = part.route.experts / 8;
  using S = WeightScales;
  const auto as = [](const char* name, ExpertShape shape, DType w, WeightScales scales) {
    return shape.model = name, shape.w = w, shape.scales = scales, shape;
  };
  const ExpertShape qwen = qwen3("", 2048, 768), air = glm("", 4096, 1408, 128);
  return {as("qwen3-30b-a3b.fp8-blocks", qwen, DType::kE4M3, S::kBlocks),
          as("qwen3-30b-a3b.fp8-rows", qwen, DType::kE4M3, S::kRows),
          as("qwen3-30b-a3b.mxfp8", qwen, DType::kE4M3, S::kMx),
          as("qwen3-30b-a3b.nvfp4", qwen, DType::kE2M1, S::kNv),
          as("qwen3-30b-a3b.mxfp4", qwen, DType::kE2M1, S::kMx),
          as("qwen3-30b-a3b.bf16", qwen, DType::kBF16, S::kMx),
          as("deepseek-v3-ep8.fp8-blocks", part, DType::kE4M3, S::kBlocks),
          as("deepseek-v3-ep8.nvfp4", part, DType::kE2M1, S::kNv),
          as("deepseek-v3-ep8.mxfp4", part, DType::kE2M1, S::kMx),
          as("deepseek-v3-ep8.bf16", part, DType::kBF16, S::kMx),
          as("glm-4.5-air.fp8-blocks", air, DType::kE4M3, S::kBlocks),
          as("glm-4.5-air.bf16", air, DType::kBF16, S::kMx)};
}

std::vector<ExpertShape> fp8_shapes() {
  ExpertShape part = deepseek_v3("");
  part.route.scope = ExpertScope::kRange;
  part.route.expert_count = part.route.experts / 8;
  using S = WeightScales;
  std::vector<ExpertShape> out;
  const auto add = [&](const std::string& model, ExpertShape shape, DType w, WeightScales scales) {
    shape.w = w, shape.scales = scales;
    for (const bool fp8 : {false, true}) {
      static std::deque<std::string> names;  // ExpertShape::model does not own its name
      shape.model = names.emplace_back(model + (fp8 ? ".fp8-activations" : "")).c_str();
      shape.fp8_x = fp8;
      out.push_back(shape);
    }
  };
  add("gpt-oss-120b", gpt_oss("", 128), DType::kE2M1, S::kMx);
  add("gpt-oss-20b", gpt_oss("", 32), DType::kE2M1, S::kMx);
  add("deepseek-v4-flash", deepseek_v4("", 256, 4096, 2048), DType::kE2M1, S::kMx);
  add("deepseek-v3-ep8.fp8-blocks", part, DType::kE4M3, S::kBlocks);
  add("glm-4.5-air.fp8-blocks", glm("", 4096, 1408, 128), DType::kE4M3, S::kBlocks);
  add("qwen3-30b-a3b.fp8-rows", qwen3("", 2048, 768), DType::kE4M3, S::kRows);
  return out;
}

GateShape ExpertShape::gate() const {
  return {hidden, route.experts, biases, biases ? DType::kBF16 : DType::kF32};
}

MoeConfig ExpertShape::moe() const {
  return {.hidden = hidden,
          .intermediate = intermediate,
          .experts = route.experts,
          .top_k = top_k,
          .logits = gate().logits(),
          .router_bias = biases,
          .method = route.method,
          .correction_bias = route.bias,
          .groups = route.groups,
          .topk_groups = route.topk_groups,
          .scale = route.scale,
          .scope = route.scope,
          .expert_begin = route.expert_begin,
          .expert_count = route.expert_count,
          .expert_w = w,
          .expert_scales = scales,
          .layout = layout_for(Backend::kCuda),
          .gate_order = order,
          .act = act,
          .alpha = alpha,
          .beta = beta,
          .limit = limit,
          .up_bias = biases,
          .down_bias = biases,
          .shared_w = w,
          .shared_scales = scales,
          .fp8_activations = fp8_x};
}

ExpertMlp::Problem ExpertShape::mlp(int64_t tokens) const {
  return ExpertMlp::at_tokens(*first_run<ExpertMlp>(moe_graph(moe()).graph), tokens);
}

sluice_peer_layer ExpertShape::peer_problem(int64_t tokens) const {
  sluice_peer_layer p = {};
  p.tokens = tokens;
  p.experts = experts();
  p.top_k = top_k;
  p.hidden = hidden;
  p.intermediate = intermediate;
  p.alpha = alpha;
  p.beta = beta;
  p.limit = limit;
  p.interleaved = order == GateOrder::kInterleaved;
  p.biases = biases;
  return p;
}

double ExpertShape::bytes(int64_t tokens, double experts_reached) const {
  return experts_reached * static_cast<double>(weight_bytes()) + 4.0 * static_cast<double>(tokens * hidden);
}

}  // namespace sluice::bench
