// Compares the choice of kernels with measured times. bench/measured/h200/*_candidates.csv have the time of
// each candidate, so a test without a GPU can check that dispatch chooses the fastest. routing.csv has the
// times of several ways to run a layer. Some rows were measured on an H100 (bench/measured/h100).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "backends/cuda/device.h"
#include "backends/cuda/experts/cost/cost.h"
#include "dispatch/explain.h"
#include "graph/run_plan.h"
#include "graph/runs.h"
#include "nn/decoder.h"
#include "nn/moe/graph.h"
#include "report/expert_shape.h"
#include "report/results.h"

namespace sluice::test {
namespace {

constexpr double kRegret = 1.05;

// [problem, note and tokens][kernel] = microseconds.
using Times = std::map<std::pair<std::string, int64_t>, std::map<std::string, double>>;
Times measured(const std::string& name, std::string_view op, const std::string& device = "h200") {
  const std::string stem = name.substr(0, name.find('.')), suite = stem.substr(0, stem.find("_candidates"));
  std::ifstream file(std::string(SLUICE_SOURCE_DIR) + "/bench/measured/" + device + "/" + name);
  std::stringstream text;
  text << file.rdbuf();
  const auto rows = bench::parse_csv(text.str(), name, suite);
  EXPECT_TRUE(rows.ok()) << rows.status().message;
  Times times;
  if (rows.ok())
    for (const bench::Row& row : rows.value())
      if (row.op == op) times[{row.model + " " + row.note, row.tokens}][row.impl] = row.median_us;
  return times;
}

// The kernel that decide() chooses for `problem` may take at most `regret` times the least time in
// `of_kernel`.
template <class Op>
void expect_fast(const typename Op::Problem& problem, const std::map<std::string, double>& of_kernel,
                 const std::string& where, double regret = kRegret) {
  const auto plan = plan_op<Op>(known_device("h200").value(), cuda::catalog(), problem);
  ASSERT_TRUE(plan.ok()) << where << ": " << plan.status().message;
  const std::string chosen(plan.value().kernel());
  ASSERT_EQ(of_kernel.count(chosen), 1u) << chosen << " was not measured at " << where;
  double least = of_kernel.at(chosen);
  for (const auto& [kernel, us] : of_kernel) least = std::min(least, us);
  EXPECT_LE(of_kernel.at(chosen), regret * least) << chosen << " at " << where;
}

TEST(Regret, RouterGemmsAreTheFastestThatWereMeasured) {
  const Times times = measured("router_candidates.csv", "router_gemm");
  EXPECT_GT(times.size(), 8u * 18u - 1u);  // the shapes and tokens of the suite
  for (const auto& [what, of_kernel] : times) {
    RouterGemm::Problem p{.tokens = what.second};
    ASSERT_EQ(std::sscanf(what.first.c_str(), "%ldx%ld", &p.hidden, &p.experts), 2);
    p.y = what.first.find("bf16") == std::string::npos ? DType::kF32 : DType::kBF16;
    p.w = what.first.find("f32 gate") == std::string::npos ? DType::kBF16 : DType::kF32;
    p.bias = what.first.find("bias") != std::string::npos;
    expect_fast<RouterGemm>(p, of_kernel, what.first + ", " + std::to_string(what.second) + " tokens");
  }
}

// The routing rule of the model that a row names.
RouteTopk::Problem routing_of(const std::string& method) {
  RouteTopk::Problem p;
  if (method == "deepseek_v3") {
    p.method = RoutingMethod::kDeepSeekV3;
    p.bias = true;
    p.groups = 8;
    p.topk_groups = 4;
    p.scale = 2.5;
  } else if (method == "sqrt_softplus") {
    p.method = RoutingMethod::kSqrtSoftplus;
    p.bias = true;
    p.scale = 1.5;
  } else {
    EXPECT_EQ(method, "renormalize");
    p.method = RoutingMethod::kRenormalize;
  }
  return p;
}

TEST(Regret, RoutingIsTheFastestThatWasMeasured) {
  const Times times = measured("routing_candidates.csv", "route_group");
  EXPECT_EQ(times.size(), 2u * 4u * 18u);  // plain and dependent launches
  for (const auto& [what, of_kernel] : times) {
    const std::string& name = what.first;  // 256x8-deepseek_v3 plain
    const size_t method = name.find('-') + 1;
    RouteGroup::Problem p{.route = routing_of(name.substr(method, name.find(' ') - method)), .tile_rows = 64};
    p.route.tokens = what.second;
    ASSERT_EQ(std::sscanf(name.c_str(), "%ldx%ld", &p.route.experts, &p.route.top_k), 2);
    expect_fast<RouteGroup>(p, of_kernel, name + ", " + std::to_string(what.second) + " tokens");
  }
}

// 4096x256: a gate of the suite, followed by the routing rule that bench/cuda/layer.cc uses for it.
RouterRoute::Problem gate_and_routing(const std::string& name, int64_t tokens) {
  RouterRoute::Problem p;
  int64_t experts = 0;
  EXPECT_EQ(std::sscanf(name.c_str(), "%ldx%ld", &p.hidden, &experts), 2);
  const bool gpt_oss = p.hidden == 2880, groups = p.hidden == 7168 && experts == 256;
  p.route = routing_of(gpt_oss ? "renormalize" : groups ? "deepseek_v3" : "sqrt_softplus");
  p.route.tokens = tokens;
  p.route.experts = experts;
  p.route.top_k = gpt_oss ? 4 : groups ? 8 : 6;
  p.route.logits = gpt_oss ? DType::kBF16 : DType::kF32;
  p.gate_bias = gpt_oss;
  return p;
}

TEST(Regret, GateAndRoutingAreTheFastestThatWereMeasured) {
  // Costs are fitted to plain launches. In chains, router GEMMs rank differently at some counts from 32 to 96
  // tokens.
  constexpr double kChainRegret = 1.2;
  const Times times = measured("router_candidates.csv", "router_route_fused");
  EXPECT_EQ(times.size(), 2u * 40u);  // plain and dependent launches
  for (const auto& [what, of_kernel] : times) {
    const bool plain = what.first.ends_with("plain");
    expect_fast<RouterRoute>(gate_and_routing(what.first, what.second), of_kernel,
                             what.first + ", " + std::to_string(what.second) + " tokens",
                             plain ? kRegret : kChainRegret);
  }
}

// The measured rows cover every configuration of expert GEMMs that the cost models rank near the best. The
// constants were fitted to the shapes without "held-out" in their note.
TEST(Regret, ExpertGemmsTakeNearlyTheFastestConfiguration) {
  // Bounds on the regret of one problem, on the geometric mean per weight type, and on the fraction of
  // problems beyond kRegret.
  struct Bound {
    double worst, mean, beyond_share;
  };
  constexpr Bound kFitted = {1.1, 1.006, 0.02}, kHeldOut = {1.15, 1.01, 0.08};
  struct Sum {
    double logs = 0;
    int problems = 0, beyond = 0;
  };
  std::map<std::string, Sum> sums;
  std::set<std::string> held_out;
  for (const char* op : {"expert_gemm_up", "expert_gemm_down"})
    for (auto [what, of_config] : measured("expert_configs.csv", op)) {
      const std::string model = what.first.substr(0, what.first.find(' '));
      const auto shape = bench::expert_shape(model);
      ASSERT_TRUE(shape.ok()) << shape.status().message;
      const ExpertMlp::Problem mlp = ExpertMlp::at_tokens(shape.value(), what.second);
      const ExpertGemm::Problem p =
          std::string(op).ends_with("up") ? ExpertMlp::up(mlp) : ExpertMlp::down(mlp);
      const auto table = cuda::catalog().table<ExpertGemm>();
      const auto plan = make_plan<ExpertGemm>(known_device("h200").value(), table, p);
      ASSERT_TRUE(plan.ok()) << plan.status().message;
      const std::string where =
          std::string(op) + " " + what.first + ", " + std::to_string(what.second) + " tokens";
      for (auto& [config, us] : of_config)
        if (config.find("_tile_") != std::string::npos) us += cuda::tile_in_layer_us(p);
      const auto chosen = of_config.find(plan.value().choice());
      ASSERT_NE(chosen, of_config.end()) << plan.value().choice() << " was not measured at " << where;
      double least = chosen->second;
      for (const auto& [config, us] : of_config) least = std::min(least, us);
      const double regret = chosen->second / least;
      const bool held = what.first.find("held-out") != std::string::npos;
      EXPECT_LE(regret, (held ? kHeldOut : kFitted).worst) << chosen->first << " at " << where;
      if (held) held_out.insert(model);
      Sum& sum = sums[std::string(text(p.w)) + (held ? ", held out" : "")];
      sum.logs += std::log(regret), ++sum.problems, sum.beyond += regret > kRegret;
    }
  EXPECT_GE(held_out.size(), 4u);
  EXPECT_EQ(sums.size(), 4u);
  for (const auto& [kind, sum] : sums) {
    EXPECT_GE(sum.problems, 40) << kind;
    const Bound& bound = kind.ends_with("held out") ? kHeldOut : kFitted;
    EXPECT_LE(std::exp(sum.logs / sum.problems), bound.mean) << kind;
    EXPECT_LE(sum.beyond, bound.beyond_share * sum.problems) << kind;
    std::printf("[   note   ] %s: %d problems, mean regret %.4f, %d beyond %.2f\n", kind.c_str(),
                sum.problems, std::exp(sum.logs / sum.problems), sum.beyond, kRegret);
  }
}

// Checks choices of configurations: each takes at most `worst` times the best measured time, and their mean
// is at most `mean`. problem_of makes a problem from a row's model, note and tokens.
template <class Op>
void expect_fast_configs(const std::string& device, const Times& times, double worst, double mean,
                         typename Op::Problem (*problem_of)(const std::string&, int64_t)) {
  double logs = 0;
  for (const auto& [what, of_config] : times) {
    const auto plan = make_plan<Op>(known_device(device).value(), cuda::catalog().table<Op>(),
                                    problem_of(what.first, what.second));
    ASSERT_TRUE(plan.ok()) << plan.status().message;
    const std::string where = device + ": " + what.first + ", " + std::to_string(what.second) + " tokens";
    const auto chosen = of_config.find(plan.value().choice());
    ASSERT_NE(chosen, of_config.end()) << plan.value().choice() << " was not measured at " << where;
    double least = chosen->second;
    for (const auto& [config, us] : of_config) least = std::min(least, us);
    EXPECT_LE(chosen->second, worst * least) << chosen->first << " at " << where;
    logs += std::log(chosen->second / least);
  }
  const double found = std::exp(logs / static_cast<double>(times.size()));
  EXPECT_LE(found, mean) << device;
  std::printf("[   note   ] %s: %zu problems, mean regret %.4f\n", device.c_str(), times.size(), found);
}

// The measured rows cover every configuration of dense layers that an earlier cost model ranked near the
// best. The cost model is fitted to these rows.
TEST(Regret, DenseLayersTakeNearlyTheFastestConfiguration) {
  const auto problem_of = [](const std::string& what, int64_t tokens) {
    Linear::Problem p{.tokens = tokens, .layout = WeightLayout::kRowMajor};
    const std::string shape = what.substr(what.find(' ') + 1);
    EXPECT_EQ(std::sscanf(shape.c_str(), "%ldx%ld", &p.features, &p.width), 2) << shape;
    p.y = shape.find("f32") == std::string::npos ? DType::kBF16 : DType::kF32;
    p.bias = shape.find("bias") != std::string::npos;
    p.residual = shape.find("residual") != std::string::npos;
    return p;
  };
  Times of_h200 = measured("linear_candidates.csv", "linear"),
        of_h100 = measured("linear_candidates.csv", "linear", "h100");
  EXPECT_EQ(of_h200.size(), 2u * 20u + 7u);
  EXPECT_EQ(of_h100.size(), 2u * 18u + 9u);
  // These rows predate the kernel with shares of the features, which is chosen here but was not measured at
  // this count.
  EXPECT_EQ(of_h200.erase({"gpt-oss-120b-qkv 5120x2880 to bf16 with bias", 80}), 1u);
  expect_fast_configs<Linear>("h200", of_h200, 1.25, 1.015, problem_of);
  expect_fast_configs<Linear>("h100", of_h100, 1.1, 1.012, problem_of);
}

Attention::Problem attention_of(const std::string& what, int64_t tokens) {
  Attention::Problem p{
      .tokens = tokens, .sequences = 1024, .pages = 1 << 17, .rows_max = 1, .sinks = true, .settled = true};
  int64_t context = 0;
  EXPECT_EQ(std::sscanf(what.c_str(), "%ldx%ldx%ld context %ld window %ld", &p.heads, &p.kv_heads,
                        &p.head_dim, &context, &p.window) >= 4,
            true)
      << what;
  p.pages_per_seq = context / p.page_size;
  if (what.find("e4m3") != std::string::npos) p.cache = CacheType::kE4M3;
  if (what.find("decodes") != std::string::npos) p.rows_max = 0;
  return p;
}

// These rows predate tiles of eight queries, which are treated as tiles of sixteen.
Times with_narrow_tiles(Times times) {
  for (auto& [what, of_config] : times) {
    const auto narrow = [](const auto& one) { return one.first.find(":8") != std::string::npos; };
    if (std::any_of(of_config.begin(), of_config.end(), narrow)) continue;
    for (const auto& [config, us] : std::map(of_config))
      if (const size_t at = config.find(":16"); at != std::string::npos)
        of_config[std::string(config).replace(at, 3, ":8")] = us;
  }
  return times;
}

// Decode attention, with caches as in bench/cuda/attention.cc. The largest regret is for one sequence whose
// context is longer than the assumed page table: 16 CTAs could share its keys.
TEST(Regret, DecodesTakeTheFastestConfiguration) {
  const Times of_h200 = measured("attention_candidates.csv", "attention_decode"),
              of_h100 = measured("attention_candidates.csv", "attention_decode", "h100");
  EXPECT_EQ(of_h200.size(), 58u);
  EXPECT_EQ(of_h100.size(), 19u);
  expect_fast_configs<Attention>("h200", with_narrow_tiles(of_h200), 1.15, 1.01, attention_of);
  expect_fast_configs<Attention>("h100", with_narrow_tiles(of_h100), 1.15, 1.02, attention_of);
}

// Prompt rows in one step with 32 decoding sequences. A few prompt rows are left to the decode kernel.
TEST(Regret, RowsOfAPromptBesideDecodesTakeNearlyTheFastestKernel) {
  const Times of_h200 = measured("attention_candidates.csv", "attention_mixed"),
              of_h100 = measured("attention_candidates.csv", "attention_mixed", "h100");
  EXPECT_EQ(of_h200.size(), 9u);
  EXPECT_EQ(of_h100.size(), 7u);
  expect_fast_configs<Attention>("h200", of_h200, 1.2, 1.07, attention_of);
  expect_fast_configs<Attention>("h100", of_h100, 1.2, 1.07, attention_of);
}

// Whole expert layers, run in each way through Sluice's kernels that the cost models rank near the best. A
// GEMM alone does not show its cost next to other launches.
TEST(Regret, ExpertLayersTakeNearlyTheFastestKernels) {
  constexpr double kWorst = 1.03;
  // Where bursts of a layer and steps of a whole model disagree, the steps decide (see the test below).
  const std::pair<std::string, int64_t> by_steps = {"gpt-oss-20b burst uniform", 32};
  for (const char* file : {"mxfp4_candidates.csv", "bf16_candidates.csv"}) {
    const Times times = measured(file, "moe_layer");
    EXPECT_GE(times.size(), 7u) << file;
    for (const auto& [what, of_way] : times) {
      auto config = known_moe(what.first.substr(0, what.first.find(' ')));
      ASSERT_TRUE(config.ok()) << config.status().message;
      config.value().layout = layout_for(Backend::kCuda);
      if (what != by_steps)
        expect_fast<ExpertMlp>(
            ExpertMlp::at_tokens(*first_run<ExpertMlp>(moe_graph(config.value()).graph), what.second), of_way,
            what.first + ", " + std::to_string(what.second) + " tokens", kWorst);
    }
  }
}

// Sustained whole steps with the experts' kernels forced by name. Without force, a layer must choose the
// fastest.
class StepRegret : public ::testing::TestWithParam<std::pair<const char*, size_t>> {
};  // a device and the rows measured on it

TEST_P(StepRegret, StepsTakeTheFastestExperts) {
  const auto [device, count] = GetParam();
  // Costs are fitted to an H200.
  const double worst = std::string_view(device) == "h200" ? 1.01 : 1.02;
  const std::string paced = " context 1024 sustained";
  Times steps;  // [model and sequences][kernel]
  for (const auto& [what, of_kernel] : measured("step_candidates.csv", "decode", device))
    if (what.first.ends_with(paced))
      steps[{what.first.substr(0, what.first.size() - paced.size()), what.second}] = of_kernel;
  EXPECT_EQ(steps.size(), count);
  for (const auto& [what, of_kernel] : steps) {
    MoeConfig moe = known_moe(what.first).value();
    moe.residual = moe.norm_x = true, moe.layout = layout_for(Backend::kCuda);
    const auto step = plan_moe(known_device(device).value(), cuda::catalog(), moe, 256);
    ASSERT_TRUE(step.ok()) << step.status().message;
    double least = of_kernel.begin()->second;
    for (const auto& [kernel, us] : of_kernel) least = std::min(least, us);
    for (const auto& [stage, layer, choice] : step.value().kernels(what.second)) {
      if (stage.find("experts") == std::string::npos) continue;
      const std::string kernel(variant_of(std::string_view(choice).substr(0, choice.find(':'))));
      ASSERT_EQ(of_kernel.count(kernel), 1u) << choice << " was not measured";
      EXPECT_LE(of_kernel.at(kernel), worst * least)
          << stage << ": " << choice << " at " << what.first << ", " << what.second << " sequences";
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Cards, StepRegret,
                         ::testing::Values(std::pair{"h200", size_t{12}}, std::pair{"h100", size_t{16}}),
                         [](const auto& info) { return std::string(info.param.first); });

// How an unfused layer reaches its experts, in the words of bench/cuda/chain.cc.
std::string way_of_a_layer() {
  std::string ops;
  MoeConfig config;
  config.layout = layout_for(Backend::kCuda);
  const auto step = plan_moe(known_device("h200").value(), cuda::catalog(), config, 512);
  EXPECT_TRUE(step.ok()) << step.status().message;
  for (const PieceProblem& piece : step.value().problems(512)) {
    if (piece.stage.find("experts") != std::string::npos) break;
    ops += (ops.empty() ? "" : " ") + std::string(piece.problem->op());
  }
  const std::map<std::string, std::string> ways = {{"router_gemm route_group", "sluice"},
                                                   {"router_gemm route_topk group_rows", "sluice-separate"},
                                                   {"router_route group_rows", "sluice-fused"}};
  EXPECT_EQ(ways.count(ops), 1u) << ops << ": not measured";
  return ways.count(ops) ? ways.at(ops) : "";
}

// [model, note and tokens][way] = microseconds: a layer up to its experts, in several ways.
TEST(Regret, ALayerTakesTheFastestWayToItsExperts) {
  constexpr double kWayRegret = 1.03;
  const std::string ours = way_of_a_layer();
  const Times times = measured("routing.csv", "chain");
  EXPECT_EQ(times.size(), 2u * 5u * 18u);  // alone and during copies
  for (const auto& [what, of_way] : times) {
    ASSERT_EQ(of_way.count(ours), 1u) << what.first;
    for (const auto& [way, us] : of_way)
      EXPECT_LE(of_way.at(ours), kWayRegret * us)
          << ours << ", " << way << " at " << what.first << ", " << what.second << " tokens";
  }
}

}  // namespace
}  // namespace sluice::test
