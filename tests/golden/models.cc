#include "golden/models.h"

#include <gtest/gtest.h>

namespace sluice::test {
namespace {

// Sizes and rules are those of the models' config.json and reference code. Experts that ship in fp8 appear
// here in bf16, like their draft layers.
const MoeModel kModels[] = {
    {"gpt_oss_20b", "y=bf16 bias=1", "method=renormalize logits=bf16",
     "w=e2m1 act=swiglu_clamped alpha=1.702 beta=1 limit=7 bias=1", "w=e2m1 bias=1", "", 2880, 2880, 2880, 32,
     4},
    {"gpt_oss_120b", "y=bf16 bias=1", "method=renormalize logits=bf16",
     "w=e2m1 act=swiglu_clamped alpha=1.702 beta=1 limit=7 bias=1", "w=e2m1 bias=1", "", 2880, 2880, 2880,
     128, 4},
    {"deepseek_v3", "", "method=deepseek_v3 bias=1 groups=8 topk_groups=4 scale=2.5",
     "w=bf16 act=swiglu gate_order=gate_first", "w=bf16", "shared=1", 7168, 7168, 2048, 256, 8},
    {"deepseek_v4_flash", "", "method=sqrt_softplus bias=1 scale=1.5",
     "w=e2m1 act=swiglu_clamped limit=10 gate_order=gate_first", "w=e2m1", "shared=1", 4096, 4096, 2048, 256,
     6},
    {"deepseek_v4_pro", "", "method=sqrt_softplus bias=1 scale=2.5",
     "w=e2m1 act=swiglu_clamped limit=10 gate_order=gate_first", "w=e2m1", "shared=1", 7168, 7168, 3072, 384,
     6},
    {"deepseek_v4_1_flash", "", "method=sqrt_softplus bias=1 scale=1.5",
     "w=e2m1 act=swiglu_clamped limit=10 gate_order=gate_first", "w=e2m1", "shared=1", 5120, 5120, 2304, 384,
     6},
    {"qwen3_30b", "", "method=renormalize_naive", "w=bf16 act=swiglu gate_order=gate_first", "w=bf16", "",
     2048, 2048, 768, 128, 8},
    {"nemotron3_nano", "", "method=deepseek_v3 bias=1 scale=2.5", "w=bf16 act=relu2", "w=bf16", "shared=1",
     2688, 2688, 1856, 128, 6},
    {"nemotron3_super", "", "method=deepseek_v3 bias=1 scale=5", "w=bf16 act=relu2", "w=bf16", "", 4096, 1024,
     2688, 512, 22},
    {"minimax_m2", "w=f32", "method=minimax2 bias=1", "w=bf16 act=swiglu gate_order=gate_first", "w=bf16", "",
     3072, 3072, 1536, 256, 8},
    {"minimax_m3", "w=f32", "method=minimax2 bias=1 scale=2",
     "w=bf16 act=swiglu_clamped alpha=1.702 beta=1 limit=7 gate_order=gate_first", "w=bf16", "shared=1", 6144,
     6144, 3072, 128, 4},
    {"mistral_large_3", "", "method=renormalize_naive", "w=bf16 act=swiglu gate_order=gate_first", "w=bf16",
     "shared=1", 7168, 7168, 4096, 128, 4},
    {"llama4_maverick", "", "method=llama4", "w=bf16 act=swiglu gate_order=gate_first weighted=1", "w=bf16",
     "shared=1 weighted=0", 5120, 5120, 8192, 128, 1},
};

std::string n(int64_t value) { return std::to_string(value); }

std::unique_ptr<AnyProblem> problem(const char* op, const std::string& fields) {
  auto made = make_problem(op);
  EXPECT_TRUE(made.ok()) << op;
  const Status status = made.value()->parse(fields);
  EXPECT_TRUE(status.ok()) << op << ": " << status.message;
  return std::move(made).value();
}

// The router's fields as router_route names them; the routing has the type of the logits.
std::string gate_of(std::string_view router) {
  std::string out;
  if (router.find("w=f32") != std::string_view::npos) out += "w=f32 ";
  if (router.find("bias=1") != std::string_view::npos) out += "gate_bias=1";
  return out;
}

// Fields of both matrices and of combine as expert_mlp names them; both weights have the same type.
std::string mlp_of(const MoeModel& m) {
  std::string out = m.up;
  const auto replace = [&](std::string_view from, std::string_view to) {
    if (const size_t at = out.find(from); at != std::string::npos) out.replace(at, from.size(), to);
  };
  replace(" bias=1", " up_bias=1");
  if (m.down.find(" bias=1") != std::string::npos) out += " down_bias=1";
  out += " " + m.combine;
  replace(" weighted=1", " weight_on_input=1");
  replace(" weighted=0", "");
  return out;
}

}  // namespace

std::span<const MoeModel> moe_models() { return kModels; }

std::vector<std::unique_ptr<AnyProblem>> layer_of(const MoeModel& m, int64_t tokens, Backend backend) {
  const std::string t = "tokens=" + n(tokens), e = " experts=" + n(m.experts),
                    rows = "rows=" + n(tokens * m.top_k);
  const std::string slots = " slots=" + n(m.top_k);
  const std::string layout = backend == Backend::kCpu ? " layout=panels16 " : " layout=fragments ";
  std::vector<std::unique_ptr<AnyProblem>> out;
  out.push_back(problem("router_gemm", t + e + " hidden=" + n(m.hidden) + " " + m.router));
  out.push_back(problem("route_topk", t + e + " top_k=" + n(m.top_k) + " " + m.routing));
  out.push_back(problem("router_route", t + e + " hidden=" + n(m.hidden) + " top_k=" + n(m.top_k) + " " +
                                            gate_of(m.router) + " " + m.routing));
  out.push_back(problem("group_rows", t + e + slots));
  out.push_back(problem("route_group", t + e + " top_k=" + n(m.top_k) + " " + m.routing + " tile_rows=64"));
  out.push_back(problem("expert_gemm", rows + " " + t + e + slots + " features=" + n(m.intermediate) +
                                           " width=" + n(m.latent) + layout + m.up));
  out.push_back(problem("expert_gemm", rows + e + " features=" + n(m.latent) + " width=" + n(m.intermediate) +
                                           layout + m.down));
  out.push_back(problem("expert_mlp", t + e + slots + " hidden=" + n(m.latent) +
                                          " intermediate=" + n(m.intermediate) + layout + mlp_of(m)));
  out.push_back(problem("combine", rows + " " + t + e + slots + " hidden=" + n(m.latent) + " " + m.combine));
  return out;
}

}  // namespace sluice::test
