// Kernel descriptors (cards) of the CUDA backend, both built and planned: what they refuse, and their costs.
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <map>
#include <set>

#include "backends/cpu/device.h"
#include "backends/cuda/device.h"
#include "cuda/cards.h"
#include "dispatch/decide.h"
#include "dispatch/explain.h"
#include "graph/run_plan.h"

namespace sluice::test {
namespace {

TEST(CudaCards, AreNamedByTheirOperation) {
  int cards = 0;
  for_each_op([&]<class Op>() {
    for (const Candidate<Op>* c : cuda::catalog().table<Op>()) {
      EXPECT_EQ(c->backend, Backend::kCuda) << c->name;
      EXPECT_EQ(std::string(c->name).find("cuda." + std::string(Op::kName) + "."), 0u) << c->name;
      ++cards;
    }
    for (const Candidate<Op>* c : cpu::catalog().table<Op>()) EXPECT_FALSE(c->planned) << c->name;
  });
  EXPECT_GT(cards, 0);
}

// One launch costs less than the separate launches.
TEST(CudaCards, NormsOfHeadsAreOneLaunchWithWhatFollowsThem) {
  using Op = QkNormRopeKvWrite;
  const std::string rows = "cuda.qk_norm_rope_kv_write.rows_sm90";
  const Op::Problem qwen{.rotation = {.rope = {.heads = 32, .head_dim = 128, .rotary = 128}, .kv_heads = 4},
                         .eps = 1e-6};
  for (const int64_t tokens : {1, 64, 1024, 16384}) {
    const Op::Problem p = Op::at_tokens(qwen, tokens);
    EXPECT_EQ(refusal<Op>(rows, p), "");
    const double norms = card<RmsNorm>("cuda.rms_norm.rows_sm90").cost_us(Op::queries(p), h200()) +
                         card<RmsNorm>("cuda.rms_norm.rows_sm90").cost_us(Op::keys(p), h200());
    const double turn = card<RopeKvWrite>("cuda.rope_kv_write.rows_sm90").cost_us(p.rotation, h200());
    EXPECT_LT(card<Op>(rows).cost_us(p, h200()), norms + turn) << tokens;
  }
  const auto refuses = [&](auto change, const char* found) {
    Op::Problem p = qwen;
    change(p);
    EXPECT_NE(refusal<Op>(rows, p).find(found), std::string::npos) << refusal<Op>(rows, p);
  };
  refuses([](Op::Problem& p) { p.rotation.rope.head_dim = 132; }, "head_dim=132");
  refuses([](Op::Problem& p) { p.rotation.rope.head_dim = 264; }, "head_dim=264");
  refuses([](Op::Problem& p) { p.rotation.rope.rotary = 64, p.rotation.rope.first = 4; }, "first=4");
  refuses([](Op::Problem& p) { p.rotation.rope.rotary = 72; }, "rotary=72");
  refuses([](Op::Problem& p) { p.x_unaligned = true; }, "x_unaligned=1");
  Op::Problem woven = qwen;
  woven.rotation.rope.pairs = RopePairs::kInterleaved, woven.rotation.rope.rotary = 72;
  EXPECT_EQ(refusal<Op>(rows, woven), "");
}

// Few rows choose kernels that stream weights; many rows choose tiles that share weights.
TEST(CudaCards, DenseLayersStreamOrShareTheirWeights) {
  const auto chosen = [](Linear::Problem p) {
    const Decision d = decide<Linear>(p, h200(), cuda::catalog().table<Linear>(), {});
    EXPECT_GE(d.chosen, 0) << fields_text(p);
    return d.chosen < 0 ? std::string() : std::string(d.verdicts[static_cast<size_t>(d.chosen)].candidate);
  };
  for (const auto& [features, width] : {std::pair{5120, 2880}, {2880, 4096}, {201088, 2880}}) {
    Linear::Problem p{.features = features, .width = width};
    for (const int64_t tokens : {1, 4}) {
      p.tokens = tokens;
      EXPECT_EQ(chosen(p), features < 100000 ? "cuda.linear.stream_sm90" : "cuda.linear.tile_sm90")
          << fields_text(p);
    }
    for (const int64_t tokens : {16, 64, 128}) {
      p.tokens = tokens;
      EXPECT_EQ(chosen(p), features == 5120   ? "cuda.linear.shares_sm90"
                           : features == 2880 ? "cuda.linear.split_sm90"
                                              : "cuda.linear.tile_sm90")
          << fields_text(p);
    }
    p.tokens = 4096;
    EXPECT_EQ(chosen(p), "cuda.linear.tile_sm90") << fields_text(p);
  }
  EXPECT_EQ(chosen({.tokens = 4, .width = 2881}), "cuda.linear.fma_sm90");
  EXPECT_EQ(chosen({.tokens = 4, .w = DType::kF32}), "cuda.linear.fma_sm90");
}

// One kernel serves any number of rows with the same bits, and every split of the sum has at least one step.
TEST(CudaCards, DenseLayersUnderBatchInvariance) {
  const Linear::Problem p{.features = 2880, .width = 4096, .bias = true, .residual = true};
  const auto table = cuda::catalog().table<Linear>();
  const auto one = invariant_policy<Linear>(h200(), table, p, 16384, {.batch_invariant = true});
  ASSERT_TRUE(one.ok()) << one.status().message;
  EXPECT_EQ(one.value().force, "cuda.linear.tile_sm90");
  Linear::Problem narrow = p;
  narrow.width = 128, narrow.tokens = 32;
  for (const Config& c : configs_of(card<Linear>("cuda.linear.split_sm90"), narrow, h200()))
    EXPECT_EQ(c.refusal.accepted(), c.name.ends_with("/2")) << c.name;
}

TEST(CudaDevice, RunsOnHopperAlone) {
  EXPECT_TRUE(cuda::accept_capability("NVIDIA H200", 9, 0).ok());
  for (const auto& [major, minor] : {std::pair{7, 5}, {8, 0}, {8, 9}, {10, 0}, {12, 0}}) {
    const Status status = cuda::accept_capability("NVIDIA Some", major, minor);
    EXPECT_EQ(status.code, Code::kUnsupported);
    for (const char* word : {"9.0", "NVIDIA Some", "sm_90a"})
      EXPECT_NE(status.message.find(word), std::string::npos) << status.message;
    EXPECT_NE(status.message.find(std::to_string(major) + "." + std::to_string(minor)), std::string::npos);
  }
}

// CTAs that wait for each other must be co-resident, so a GPU with fewer SMs uses another kernel.
TEST(CudaCards, ManyTokensOfLanesWantAnSmForEachBlock) {
  constexpr std::string_view kLanes = "cuda.route_group.lanes_sm90";
  DeviceInfo small = h200();
  small.cores = 114;
  RouteGroup::Problem p;
  p.route.tokens = 64;
  EXPECT_EQ(refusal<RouteGroup>(kLanes, p, small), "");
  p.route.tokens = 4096;
  EXPECT_EQ(refusal<RouteGroup>(kLanes, p), "");
  EXPECT_NE(refusal<RouteGroup>(kLanes, p, small).find("SMs=114"), std::string::npos)
      << refusal<RouteGroup>(kLanes, p, small);
  EXPECT_TRUE(decide_run<RouteGroup>(p, small, cuda::catalog()).by_stages());
}

TEST(CudaDevice, SaysWhatIsMissing) {
  const auto opened = cuda::open_device({.index = 4711});  // no machine has this many GPUs
  EXPECT_EQ(opened.status().code, Code::kUnsupported);
  EXPECT_NE(opened.status().message.find("cuda: wanted"), std::string::npos) << opened.status().message;
  EXPECT_NE(opened.status().message.find("found"), std::string::npos) << opened.status().message;
}

TEST(CudaCards, CostsArePositiveAndMoreTokensCostMore) {
  for_each_op([&]<class Op>() {
    for (const Candidate<Op>* c : cuda::catalog().table<Op>()) {
      const auto cost = [&](int64_t tokens) {
        const auto problem = Op::at_tokens({}, tokens);
        return best_config(*c, problem, h200()).cost_us;
      };
      for (int64_t tokens : {0, 1, 2, 7, 64, 1000, 16384})
        EXPECT_TRUE(std::isfinite(cost(tokens)) && cost(tokens) > 0)
            << c->name << " " << tokens << ": " << cost(tokens);
      EXPECT_GT(cost(16384), cost(64)) << c->name;
      EXPECT_GE(cost(64), cost(1)) << c->name;
    }
  });
}

TEST(CudaCards, RouterGemmRefusesWithTheValue) {
  const std::string_view splitk = "cuda.router_gemm.splitk_sm90";
  EXPECT_EQ(refusal<RouterGemm>(splitk, {.tokens = 512, .experts = 33}), "");
  EXPECT_EQ(refusal<RouterGemm>(splitk, {.tokens = 513}),
            "needs tokens <= 512 (every tile loads its rows again); tokens=513");
  EXPECT_NE(refusal<RouterGemm>(splitk, {.hidden = 2884}).find("hidden=2884"), std::string::npos);
  EXPECT_NE(refusal<RouterGemm>(splitk, {.hidden = 120}).find("hidden=120"), std::string::npos);
  EXPECT_EQ(refusal<RouterGemm>(splitk, {.w = DType::kF32}), "");
  EXPECT_NE(refusal<RouterGemm>("cuda.router_gemm.gemv_sm90", {.tokens = 5}).find("tokens=5"),
            std::string::npos);
  EXPECT_EQ(refusal<RouterGemm>("cuda.router_gemm.fma_sm90", {.tokens = 16384, .experts = 33, .hidden = 7}),
            "");
  EXPECT_NE(refusal<RouterGemm>(splitk, {}, known_device("a100").value()).find("sm=80"), std::string::npos);
  const std::string_view terms = "cuda.router_gemm.terms_sm90";
  EXPECT_EQ(refusal<RouterGemm>(terms, {.tokens = 16384, .experts = 33, .w = DType::kF32}), "");
  EXPECT_NE(refusal<RouterGemm>(terms, {}).find("w=bf16"), std::string::npos);
  EXPECT_NE(refusal<RouterGemm>(terms, {.x = DType::kF32, .w = DType::kF32}).find("x=f32"),
            std::string::npos);
  EXPECT_NE(refusal<RouterGemm>("cuda.router_gemm.tile_sm90", {.hidden = 2884}).find("hidden=2884"),
            std::string::npos);
}

// Measured with rank 16: one CTA per token is faster up to 64 tokens.
TEST(CudaCards, LoraDeltaTakesTensorCoresBeyond64Tokens) {
  const auto chosen = [](int64_t tokens, int64_t rank) {
    const Decision d = decide<LoraDelta>({.tokens = tokens, .rank = rank, .adapters = 8}, h200(),
                                         cuda::catalog().table<LoraDelta>());
    return d.chosen < 0 ? std::string_view("nobody") : d.verdicts[static_cast<size_t>(d.chosen)].candidate;
  };
  EXPECT_EQ(chosen(1, 16), "cuda.lora_delta.cluster_sm90");
  EXPECT_EQ(chosen(64, 16), "cuda.lora_delta.cluster_sm90");
  for (const int64_t rank : {8, 16, 64, 256})
    for (const int64_t tokens : {65, 1000, 16384})
      EXPECT_EQ(chosen(tokens, rank), "cuda.lora_delta.mma_sm90") << rank << " " << tokens;
  EXPECT_EQ(chosen(64, 12), "cuda.lora_delta.cluster_sm90");  // rows of b are no multiple of 16 bytes
  EXPECT_NE(refusal<LoraDelta>("cuda.lora_delta.mma_sm90", {.rank = 264}).find("rank=264"),
            std::string::npos);
  EXPECT_NE(refusal<LoraDelta>("cuda.lora_delta.mma_sm90", {.w = DType::kF32}).find("w=f32"),
            std::string::npos);
}

// Measured with 8 adapters of rank 16 on gpt-oss-120b: one of few rows has a cluster of 8 CTAs, many rows share a CTA.
TEST(CudaCards, ExpertLoraDividesFewRowsOverManyCtas) {
  ExpertLora::Problem up{.rows = 4, .tokens = 1, .slots = 4, .experts = 128, .rank = 16, .adapters = 8};
  up.layout = WeightLayout::kFragments, up.act = Activation::kSwiGlu, up.gathers = true, up.z = DType::kBF16;
  const auto chosen = [&](const ExpertLora::Problem& p) {
    const Decision d = decide<ExpertLora>(p, h200(), cuda::catalog().table<ExpertLora>());
    if (d.chosen < 0) return std::string("nobody");
    const Verdict& v = d.verdicts[static_cast<size_t>(d.chosen)];
    return std::string(v.candidate) + ":" + v.configs[static_cast<size_t>(v.config)].name;
  };
  for (const auto& [tokens, kernel] :
       {std::pair{1, "rows_sm90:1x8"}, std::pair{16, "rows_sm90:1x2"}, std::pair{64, "rows_sm90:1x4"},
        std::pair{256, "mma_sm90:8x2"}, std::pair{8192, "mma_sm90:16x1"}})
    EXPECT_EQ(chosen(ExpertLora::at_tokens(up, tokens)), std::string("cuda.expert_lora.") + kernel) << tokens;
  // The parts of A and B of a CTA do not fit into its shared memory.
  ExpertLora::Problem large = ExpertLora::at_tokens(up, 1);
  large.rank = 256;
  EXPECT_EQ(chosen(large), "cuda.expert_lora.mma_sm90:1x8");
  constexpr std::string_view kMma = "cuda.expert_lora.mma_sm90";
  ExpertLora::Problem odd = up;
  odd.rank = 12;
  EXPECT_NE(refusal<ExpertLora>(kMma, odd).find("rank=12"), std::string::npos);
  EXPECT_TRUE(chosen(odd).starts_with("cuda.expert_lora.fma_sm90"));
  odd = up, odd.w = DType::kF32;
  EXPECT_NE(refusal<ExpertLora>(kMma, odd).find("w=f32"), std::string::npos);
  odd = up, odd.layout = WeightLayout::kPanels16;
  EXPECT_NE(refusal<ExpertLora>(kMma, odd).find("layout=panels16"), std::string::npos);
}

// The cost of an operation's stages, each by its cheapest kernel.
template <class... Ops>
double min_us(const typename Ops::Problem&... problems) {
  double sum = 0;
  const auto add = [&]<class Op>(std::type_identity<Op>, const typename Op::Problem& p) {
    const Decision d = decide<Op>(p, h200(), cuda::catalog().table<Op>());
    EXPECT_GE(d.chosen, 0) << d.status().message;
    sum += d.chosen < 0 ? 0 : d.choice().cost_us;
  };
  (add(std::type_identity<Ops>{}, problems), ...);
  return sum;
}

// For few tokens a fused kernel is chosen, if one accepts the problem; otherwise the cheapest kernel of each
// half.
TEST(CudaCards, RouterRouteIsOneKernelOrTheBestPair) {
  const std::string_view few = "cuda.router_route.fewtokens_sm90";
  RouterRoute::Problem p{.route = {.tokens = 1, .experts = 128, .top_k = 4, .logits = DType::kBF16},
                         .gate_bias = true};
  const auto chosen = [&] {
    const Decision d = decide_run<RouterRoute>(p, h200(), cuda::catalog()).decision;
    EXPECT_GE(d.chosen, 0) << d.status().message;
    return d.verdicts[static_cast<size_t>(std::max(d.chosen, 0))];
  };
  EXPECT_EQ(chosen().candidate, few);
  p.route.tokens = 65;
  EXPECT_NE(refusal<RouterRoute>(few, p).find("tokens=65"), std::string::npos)
      << refusal<RouterRoute>(few, p);
  p.route.tokens = 1, p.hidden = 4096;
  EXPECT_NE(refusal<RouterRoute>(few, p).find("hidden=4096"), std::string::npos)
      << refusal<RouterRoute>(few, p);
  p.hidden = 2880, p.w = DType::kF32;
  EXPECT_NE(refusal<RouterRoute>(few, p).find("w=f32"), std::string::npos) << refusal<RouterRoute>(few, p);
  p.w = DType::kBF16, p.route.experts = 100;
  EXPECT_NE(refusal<RouterRoute>(few, p).find("experts=100"), std::string::npos)
      << refusal<RouterRoute>(few, p);
  for (const int64_t tokens : {0, 100, 1000, 16384}) {
    p.route.tokens = tokens, p.route.experts = 128;
    EXPECT_EQ(chosen().candidate, kStageByStage);
    EXPECT_DOUBLE_EQ(chosen().cost_us, (min_us<RouterGemm, RouteTopk>(RouterRoute::gate(p), p.route)))
        << tokens;
  }
}

// Two products run as one fused kernel or as two kernels. Naming a kernel for one stage affects no other
// stage.
TEST(CudaCards, ExpertsStageByStageCostWhatTheirKernelsDo) {
  for (const DType w : {DType::kE2M1, DType::kBF16}) {
    for (const int64_t tokens : {1, 4, 64, 1000, 8192}) {
      const ExpertMlp::Problem p{
          .tokens = tokens, .experts = 128, .w = w, .layout = WeightLayout::kFragments};
      const RunDecision made =
          decide_run<ExpertMlp>(p, h200(), cuda::catalog(), {.force = "cuda.group_rows.cluster_sm90"});
      ASSERT_TRUE(made.by_stages()) << made.decision.status().message;
      const auto outer = min_us<GroupRows, Combine>(ExpertMlp::group(p), ExpertMlp::combine(p)),
                 products = min_us<ExpertGemm, ExpertGemm>(ExpertMlp::up(p), ExpertMlp::down(p));
      const Decision both =
          decide<GroupedMlp>(GroupedMlp::of(p), h200(), cuda::catalog().table<GroupedMlp>());
      EXPECT_NEAR(made.decision.choice().cost_us,
                  outer + std::min(products, both.chosen < 0 ? products : both.choice().cost_us), 1e-9)
          << tokens << " tokens, " << text(w);
      for (size_t i = 0; i + 1 < made.decision.verdicts.size(); ++i)
        EXPECT_NE(made.decision.verdicts[i].refusal.line().find("policy.force"), std::string::npos);
    }
  }
  const ExpertMlp::Problem p{.experts = 128, .layout = WeightLayout::kFragments};
  for (const char* word : {"cuda.expert_mlp.no_such", "cuda.linear.tile_sm90", "nonsense"}) {
    const Status status =
        decide_run<ExpertMlp>(p, h200(), cuda::catalog(), {.force = word}).decision.status();
    EXPECT_EQ(status.code, Code::kInvalidArgument) << word;
    EXPECT_NE(status.message.find(word), std::string::npos) << status.message;
  }
}

// One launch while the partial sums fit in shared memory beside the weights, then two launches, then unfused
// stages.
TEST(CudaCards, ExpertMlpOfVeryFewTokensIsOneLaunch) {
  const std::string_view slices = "cuda.expert_mlp.mxfp4_slices_sm90",
                         two = "cuda.expert_mlp.mxfp4_fewtokens_sm90";
  ExpertMlp::Problem p{.experts = 128,
                       .layout = WeightLayout::kFragments,
                       .act = Activation::kSwiGluClamped,
                       .limit = 7,
                       .up_bias = true,
                       .down_bias = true};
  const auto chosen = [&] {
    const Decision d = decide_run<ExpertMlp>(p, h200(), cuda::catalog()).decision;
    EXPECT_GE(d.chosen, 0) << d.status().message;
    return d.verdicts[static_cast<size_t>(std::max(d.chosen, 0))].candidate;
  };
  for (const int64_t tokens : {1, 2, 3}) {
    p.tokens = tokens;
    EXPECT_EQ(refusal<ExpertMlp>(slices, p), "") << tokens;
    EXPECT_EQ(chosen(), slices) << tokens;
  }
  p.tokens = 4;  // 3 slices, 8 rows, 16 slots, 8 segments, one word against bank conflicts
  EXPECT_NE(refusal<ExpertMlp>(slices, p).find("sums=3456"), std::string::npos)
      << refusal<ExpertMlp>(slices, p);
  EXPECT_EQ(chosen(), two);
  p.tokens = 5;
  EXPECT_NE(refusal<ExpertMlp>(slices, p).find("tokens * slots=20"), std::string::npos)
      << refusal<ExpertMlp>(slices, p);
  p.tokens = 1, p.intermediate = 64 * 64 + 32;
  EXPECT_NE(refusal<ExpertMlp>(slices, p).find("intermediate=4128"), std::string::npos)
      << refusal<ExpertMlp>(slices, p);
  p.intermediate = 384, p.hidden = 7168, p.slots = 6;
  EXPECT_EQ(chosen(), slices);
  p.tokens = 2;
  EXPECT_NE(refusal<ExpertMlp>(slices, p).find("rows of slots=896"), std::string::npos)
      << refusal<ExpertMlp>(slices, p);
}

// PlanTable relies on two properties: a candidate that accepts two token counts accepts all counts between
// them, and no configuration needs more workspace for fewer tokens.
TEST(CudaCards, CandidatesTakeRangesOfTokens) {
  for_each_op([&]<class Op>() {
    for (const Candidate<Op>* c : cuda::catalog().table<Op>()) {
      int changes = 0;
      bool before = false;
      std::map<std::string, size_t> most;
      for (int64_t tokens = 1; tokens <= 16384; tokens += 1 + tokens / 16) {
        const auto problem = Op::at_tokens({}, tokens);
        const bool now = c->supports(problem, h200()).accepted();
        changes += now != before, before = now;
        if (!now) continue;
        for (const Config& one : configs_of(*c, problem, h200())) {
          if (!c->configs) continue;
          EXPECT_GE(one.workspace_bytes, most[one.name]) << c->name << ":" << one.name << " at " << tokens;
          most[one.name] = one.workspace_bytes;
        }
      }
      EXPECT_LE(changes, 2) << c->name << " accepts token counts with gaps";
    }
  });
}

}  // namespace
}  // namespace sluice::test
