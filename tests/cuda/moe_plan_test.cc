// The MoE layers that the built kernels can run on an H200, planned without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "backends/cpu/device.h"
#include "backends/cuda/device.h"
#include "dispatch/explain.h"
#include "graph/runs.h"
#include "nn/moe/graph.h"
#include "nn/moe/problems.h"

namespace sluice::test {
namespace {

// The kernels and properties of an H200, without a GPU to run on.
class PaperDevice final : public Device {
 public:
  explicit PaperDevice(DeviceInfo info = known_device("h200").value())
      : info_(std::move(info)), memory_(cpu::open_device({.threads = 1}).value()) {
    for_each_op([&]<class Op>() {
      for (const Candidate<Op>* c : cuda::catalog().table<Op>())
        if (!c->planned) built_.add(*c);
    });
  }
  // Offers this kernel instead of all kernels of ExpertMlp and GroupedMlp.
  void offer(const Candidate<ExpertMlp>& kernel) {
    Catalog all;
    for_each_op([&]<class Op>() {
      for (const Candidate<Op>* c : built_.table<Op>())
        if (!(std::is_same_v<Op, ExpertMlp> || std::is_same_v<Op, GroupedMlp>)) all.add(*c);
    });
    all.add(kernel);
    built_ = all;
  }
  void offer_also(const Candidate<ExpertMlp>& kernel) { built_.add(kernel); }
  const DeviceInfo& info() const override { return info_; }
  const Catalog& catalog() const override { return built_; }
  Result<void*> allocate(size_t bytes) override { return memory_->allocate(bytes); }
  void release(void* memory) override { memory_->release(memory); }
  bool shares_host_memory() const override { return false; }
  Result<void*> allocate_host(size_t bytes) override { return memory_->allocate(bytes); }
  void release_host(void* memory) override { memory_->release(memory); }
  int64_t free_bytes() const override { return memory_->free_bytes(); }
  Stream stream() override { return memory_->stream(); }
  Status copy(void* to, const void* from, size_t bytes, Stream stream) override {
    return memory_->copy(to, from, bytes, stream);
  }
  Status wait(Stream) override { return {}; }
  Result<std::unique_ptr<Recording>> record(Stream, const std::function<Status()>&) override {
    return unsupported("a device without hardware");
  }
  Status replay(const Recording&, Stream) override { return unsupported("a device without hardware"); }

 private:
  DeviceInfo info_;
  Catalog built_;
  std::unique_ptr<Device> memory_;
};

}  // namespace

// Kernels round rows of x to FP8 only where the layer permits it, and only at counts of tokens at which that is faster.
TEST(MoePlanOnCuda, Fp8ActivationsAreUsedForManyTokens) {
  PaperDevice device;
  MoeConfig config = known_moe("gpt-oss-120b").value();
  config.layout = layout_for(Backend::kCuda);
  const auto rounds = [](const Moe& moe, int64_t tokens) {
    int64_t count = 0;
    for (const auto& [stage, kernel] : moe.kernels(tokens)) count += kernel.find("_fp8_tile") != kernel.npos;
    return count;
  };
  const auto exact = Moe::plan(device, config, 8192);
  config.fp8_activations = true;
  const auto rounded = Moe::plan(device, config, 8192);
  ASSERT_TRUE(exact.ok() && rounded.ok()) << rounded.status().message;
  for (const int64_t tokens : {1, 8, 64, 256, 4096, 8192})
    EXPECT_EQ(rounds(*exact.value(), tokens), 0) << tokens;
  for (const int64_t tokens : {1, 8, 64, 256, 1024}) EXPECT_EQ(rounds(*rounded.value(), tokens), 0) << tokens;
  for (const int64_t tokens : {4096, 8192}) EXPECT_EQ(rounds(*rounded.value(), tokens), 2) << tokens;
}

TEST(MoePlanOnCuda, Fp8ActivationsNeedAKernelThatRounds) {
  PaperDevice device;
  MoeConfig config = known_moe("qwen3-30b-a3b").value();  // bf16
  config.layout = layout_for(Backend::kCuda);
  config.fp8_activations = true;
  Status refused = Moe::plan(device, config, 64).status();
  EXPECT_EQ(refused.message.find(
                "fp8_activations: wanted activations in bf16, experts in e2m1 (scales mx) or e4m3"),
            0u)
      << refused.message;
  EXPECT_NE(refused.message.find("experts in bf16"), std::string::npos) << refused.message;
  config.expert_w = DType::kE4M3, config.expert_scales = WeightScales::kRows;
  EXPECT_TRUE(Moe::plan(device, config, 64).ok());
  const auto cpu = cpu::open_device({.threads = 1}).value();
  config.layout = layout_for(Backend::kCpu);
  refused = Moe::plan(*cpu, config, 64).status();
  EXPECT_NE(refused.message.find("and the device cpu"), std::string::npos) << refused.message;
}

TEST(MoePlanOnCuda, KnownLayersPlanAtEveryCount) {
  PaperDevice device;
  for (const char* model : {"gpt-oss-20b", "gpt-oss-120b", "deepseek-v4-flash", "deepseek-v4-pro",
                            "deepseek-v3", "qwen3-30b-a3b", "nemotron-3-nano"}) {
    auto known = known_moe(model);
    ASSERT_TRUE(known.ok()) << known.status().message;
    MoeConfig config = known.value();
    config.layout = layout_for(Backend::kCuda);
    for (int64_t intermediate : {config.intermediate, config.intermediate / 8 / 32 * 32}) {
      config.intermediate = intermediate;  // the whole layer, and one of eight ranks
      if (config.shared_as_slots) config.shared_intermediate = intermediate;
      const auto moe = Moe::plan(device, config, 1024);
      ASSERT_TRUE(moe.ok()) << model << ": " << moe.status().message;
      for (int64_t tokens : {0, 1, 64, 1024})
        for (const auto& [stage, kernel] : moe.value()->kernels(tokens))
          EXPECT_TRUE(kernel.starts_with("cuda.")) << model << " " << stage << ": " << kernel;
    }
  }
}

// Every optional feature of a call, on layers of both weight types.
TEST(MoePlanOnCuda, FeaturesPlanAtEveryCount) {
  PaperDevice device;
  for (const char* model : {"gpt-oss-120b", "deepseek-v4-flash", "deepseek-v3"}) {
    for (const char* fields :
         {"input=precomputed", "input=packed capture=1 padded=1", "capture=1", "padded=1",
          "lora_rank=16 lora_adapters=4", "lora_rank=8 lora_adapters=1 padded=1 capture=1"}) {
      MoeConfig config = known_moe(model).value();
      config.layout = layout_for(Backend::kCuda);
      ASSERT_TRUE(parse_fields(fields, &config).ok());
      const auto moe = Moe::plan(device, config, 1024);
      ASSERT_TRUE(moe.ok()) << model << " " << fields << ": " << moe.status().message;
      for (int64_t tokens : {0, 1, 64, 1024})
        for (const auto& [stage, kernel] : moe.value()->kernels(tokens))
          EXPECT_TRUE(kernel.starts_with("cuda.")) << model << " " << stage << ": " << kernel;
    }
  }
}

// The descriptor of a kernel that computes all experts: up to `most` tokens, in `us` microseconds.
class MadeUp {
 public:
  MadeUp(int64_t most, double us, bool batch_invariant = true) : card_{base()} {
    max_ = most, us_ = us;
    card_.batch_invariant = batch_invariant;
  }
  const Candidate<ExpertMlp>& card() const { return card_; }
  static void ask_for(size_t bytes) { workspace_ = bytes; }

 private:
  static Candidate<ExpertMlp> base() {
    return {.name = "cuda.expert_mlp.made_up",
            .backend = Backend::kCuda,
            .supports =
                [](const ExpertMlp::Problem& p, const DeviceInfo&) {
                  Refusal r;
                  r.need(p.tokens <= max_, "few tokens", "tokens", p.tokens);
                  return r;
                },
            .cost_us = [](const ExpertMlp::Problem&, const DeviceInfo&) { return us_; },
            .workspace_bytes = [](const ExpertMlp::Problem&, const DeviceInfo&) { return workspace_; },
            .enqueue = [](const ExpertMlp::Problem&, const ExpertMlp::Args&, Workspace,
                          Stream) { return unsupported("a card without a kernel"); }};
  }
  static inline int64_t max_ = 0;
  static inline size_t workspace_ = 1024;
  static inline double us_ = 0;
  Candidate<ExpertMlp> card_;
};

MoeConfig gpt_oss_on_cuda() {
  MoeConfig config = known_moe("gpt-oss-120b").value();
  config.layout = layout_for(Backend::kCuda);
  return config;
}

// The predicted cost of a layer without the kernel, and of only its router and routing.
struct Costs {
  double all = 0, front = 0;
};
Costs costs_of(const Moe& moe, int64_t tokens) {
  Costs out;
  for (const PieceProblem& piece : moe.step().problems(tokens)) {
    const Decision d = piece.problem->decide(known_device("h200").value(), cuda::catalog(), piece.policy);
    EXPECT_GE(d.chosen, 0) << piece.problem->text();
    const double us = d.verdicts[static_cast<size_t>(std::max(d.chosen, 0))].cost_us;
    out.all += us;
    if (piece.stage.starts_with("router")) out.front += us;
  }
  return out;
}

TEST(MoePlanOnCuda, ExpertsAreOneOperationWhereTheCostsSaySo) {
  const MoeConfig config = gpt_oss_on_cuda();
  PaperDevice bare;
  const auto without = Moe::plan(bare, config, 300);
  ASSERT_TRUE(without.ok()) << without.status().message;
  // The kernel accepts up to 40 tokens, first at almost no cost, then at a prohibitive cost.
  for (const bool cheap : {true, false}) {
    const MadeUp kernel(40, cheap ? 1e-3 : 1e6);
    PaperDevice device;
    device.offer(kernel.card());
    const auto moe = Moe::plan(device, config, 300);
    ASSERT_TRUE(moe.ok()) << moe.status().message;
    for (const int64_t tokens : {1, 8, 9, 40, 41, 300}) {
      const bool as_one = cheap && tokens <= 40;
      std::vector<std::string> of_kernel;
      for (const auto& [stage, chosen] : moe.value()->kernels(tokens))
        if (chosen == "cuda.expert_mlp.made_up") of_kernel.push_back(stage);
      EXPECT_EQ(of_kernel, as_one ? std::vector<std::string>{"group+experts.up+experts.down+combine"}
                                  : std::vector<std::string>{})
          << tokens;
      if (as_one) {
        EXPECT_LT(moe.value()->step().cost_us(tokens), without.value()->step().cost_us(tokens)) << tokens;
      }
      const Costs costs = costs_of(*without.value(), tokens);
      EXPECT_NEAR(costs.all, without.value()->step().cost_us(tokens), 1e-6 * costs.all) << tokens;
    }
  }
  const MadeUp kernel(40, 1e-3);
  PaperDevice device;
  device.offer(kernel.card());
  MadeUp::ask_for(size_t{1} << 30);
  const auto more = Moe::plan(device, config, 300);
  MadeUp::ask_for(1024);
  ASSERT_TRUE(more.ok());
  EXPECT_GT(more.value()->workspace_bytes(), size_t{1} << 30);
}

// The chosen cover is optimal: the test enumerates all combinations of pieces, and none costs less.
TEST(MoePlanOnCuda, NoCoverCostsLess) {
  PaperDevice device;
  for (const char* model : {"gpt-oss-20b", "gpt-oss-120b", "deepseek-v3", "nemotron-3-super"}) {
    MoeConfig config = known_moe(model).value();
    config.layout = layout_for(Backend::kCuda);
    config.residual = config.norm_x = config.norm_y = true;
    const auto moe = Moe::plan(device, config, 512);
    ASSERT_TRUE(moe.ok()) << moe.status().message;
    const Step& step = moe.value()->step();
    for (const int64_t tokens : {1, 3, 8, 20, 64, 200, 512}) {
      const size_t stages = step.graph().stages().size();
      std::vector<double> least(stages + 1, kInfinity);
      least[0] = 0;
      for (size_t i = 0; i < stages; ++i)
        for (const PieceKind* kind : step.pieces().at(i, 0))
          if (kind->serves(tokens))
            least[i + kind->stages()] = std::min(least[i + kind->stages()], least[i] + kind->cost_us(tokens));
      EXPECT_NEAR(step.cost_us(tokens), least[stages], 1e-9 * least[stages]) << model << ", " << tokens;
    }
  }
}

// With a few to about fifty rows per expert, both products are one launch. With fewer rows the experts are
// computed from ids; with more rows each product has its own kernels. A named kernel is used at every count,
// and a named kernel that cannot run gives a reason.
TEST(MoePlanOnCuda, BothProductsAreOneLaunchInBetween) {
  MoeConfig config = known_moe("gpt-oss-20b").value();
  config.layout = layout_for(Backend::kCuda);
  PaperDevice device;
  const auto moe = Moe::plan(device, config, 8192);
  ASSERT_TRUE(moe.ok()) << moe.status().message;
  const auto stages_at = [](const Moe& of, int64_t tokens) {
    std::vector<std::string> out;
    for (const auto& [stage, kernel] : of.kernels(tokens)) out.push_back(stage);
    return out;
  };
  const std::string as_one = "group+experts.up+experts.down+combine", both = "experts.up+experts.down";
  for (const auto& [tokens, piece] :
       {std::pair{1, as_one}, {64, both}, {128, both}, {256, both}, {4096, std::string("experts.up")}}) {
    const std::vector<std::string> stages = stages_at(*moe.value(), tokens);
    EXPECT_EQ(std::count(stages.begin(), stages.end(), piece), 1) << tokens;
  }
  const std::vector<std::string> grouped = {"router", "route+group", both, "combine"};
  EXPECT_EQ(stages_at(*moe.value(), 128), grouped);
  const auto named =
      Moe::plan(device, config, 8192, {}, {.decode = "mxfp4_both_sm90", .prefill = "mxfp4_both_sm90"});
  ASSERT_TRUE(named.ok()) << named.status().message;
  for (const int64_t tokens : {1, 40, 8192}) {
    const std::vector<std::string> stages = stages_at(*named.value(), tokens);
    EXPECT_EQ(std::count(stages.begin(), stages.end(), both), 1) << tokens;
  }
  // Forcing a kernel for one product splits the experts into two products.
  const auto forced = Moe::plan(device, config, 256, {.force = "cuda.expert_gemm.mxfp4_tile_sm90"});
  ASSERT_TRUE(forced.ok()) << forced.status().message;
  const std::vector<std::string> by_force = stages_at(*forced.value(), 128);
  EXPECT_EQ(std::count(by_force.begin(), by_force.end(), both), 0);
  EXPECT_EQ(std::count(by_force.begin(), by_force.end(), "experts.up"), 1);
  config.expert_w = DType::kBF16;
  const auto other =
      Moe::plan(device, config, 64, {}, {.decode = "mxfp4_both_sm90", .prefill = "mxfp4_both_sm90"});
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message.find("w in e2m1 (decoded in registers); w=bf16"), std::string::npos)
      << other.status().message;
}

// A kernel of several stages that the policy names is used at all counts that it accepts.
TEST(MoePlanOnCuda, ANamedKernelOfSeveralStagesRunsWhereItCan) {
  const MoeConfig config = gpt_oss_on_cuda();
  const MadeUp kernel(40, 1e6);
  PaperDevice device;
  device.offer(kernel.card());
  const auto moe = Moe::plan(device, config, 64, {.force = "cuda.expert_mlp.made_up"});
  ASSERT_TRUE(moe.ok()) << moe.status().message;
  for (const int64_t tokens : {1, 40, 41, 64}) {
    bool runs = false;
    for (const auto& [stage, chosen] : moe.value()->kernels(tokens))
      runs |= chosen == "cuda.expert_mlp.made_up";
    EXPECT_EQ(runs, tokens <= 40) << tokens;
  }
  // A kernel named for a phase must accept all counts of the phase.
  const auto all = Moe::plan(device, config, 64, {}, {.decode = "made_up", .prefill = "made_up"});
  ASSERT_FALSE(all.ok());
  EXPECT_EQ(all.status().code, Code::kUnsupported);
  EXPECT_NE(all.status().message.find("cuda.expert_mlp.made_up"), std::string::npos) << all.status().message;
  const auto phase = Moe::plan(device, config, 64, {}, {.decode = "made_up", .decode_tokens = 40});
  EXPECT_TRUE(phase.ok()) << phase.status().message;
}

// A name in Policy::force affects one operation; the layer's other operations keep their own choice.
TEST(MoePlanOnCuda, ForcingOneOperationLeavesTheOthersFree) {
  const MoeConfig config = gpt_oss_on_cuda();
  PaperDevice device;
  const auto free = Moe::plan(device, config, 64),
             forced = Moe::plan(device, config, 64,
                                {.force = "cuda.expert_gemm.mxfp4_tile_sm90:384x16+192x112.threads"});
  ASSERT_TRUE(free.ok() && forced.ok()) << free.status().message << forced.status().message;
  std::map<std::string, std::string> of_stage;
  for (const auto& [stage, kernel] : forced.value()->kernels(64)) of_stage[stage] = kernel;
  EXPECT_EQ(of_stage["experts.up"], "cuda.expert_gemm.mxfp4_tile_sm90:384x16+192x112.threads");
  for (const auto& [stage, kernel] : free.value()->kernels(64)) {
    if (stage.starts_with("experts")) continue;
    EXPECT_EQ(of_stage[stage], kernel) << stage;
  }

  const auto unknown = Moe::plan(device, config, 64, {.force = "cuda.attention.decode_sm90"});
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code, Code::kInvalidArgument);
  EXPECT_NE(unknown.status().message.find("cuda.attention.decode_sm90"), std::string::npos)
      << unknown.status().message;
}

TEST(MoePlanOnCuda, BatchInvariantLayersKeepOnePath) {
  const MoeConfig config = gpt_oss_on_cuda();
  const struct {
    int64_t most;
    double us;
    bool invariant;
    bool as_one;
    const char* why;
  } cases[] = {
      {64, 1e-3, true, true, "accepts every count and costs nothing"},
      {63, 1e-3, true, false, "does not accept the largest count"},
      {64, 1e-3, false, false, "its rows depend on each other"},
      {64, 1e6, true, false, "costs more than the parts"},
  };
  for (const auto& c : cases) {
    const MadeUp kernel(c.most, c.us, c.invariant);
    PaperDevice device;
    device.offer(kernel.card());
    const auto moe = Moe::plan(device, config, 64, {.batch_invariant = true});
    ASSERT_TRUE(moe.ok()) << moe.status().message;
    // Configurations may differ, because all configurations of a kernel give the same bits.
    const auto kernels = [&](int64_t tokens) {
      auto out = moe.value()->kernels(tokens);
      for (auto& [stage, kernel] : out) kernel.resize(std::min(kernel.find(':'), kernel.size()));
      return out;
    };
    const auto first = kernels(1);
    for (int64_t tokens = 0; tokens <= 64; ++tokens) {
      bool as_one = false;
      for (const auto& [stage, kernel] : kernels(tokens)) as_one |= kernel == "cuda.expert_mlp.made_up";
      EXPECT_EQ(as_one, c.as_one) << c.why << ", " << tokens << " tokens";
      EXPECT_EQ(kernels(std::max<int64_t>(1, tokens)), first) << c.why << ", " << tokens << " tokens";
    }
  }
}

TEST(MoePlanOnCuda, ThePartsOfOneOperationAreTheLayersParts) {
  for (const char* model :
       {"gpt-oss-20b", "deepseek-v4-flash", "deepseek-v3", "nemotron-3-nano", "llama-4-scout"}) {
    for (const ExpertScope scope : {ExpertScope::kAll, ExpertScope::kRange}) {
      MoeConfig c = known_moe(model).value();
      c.scope = scope, c.expert_count = scope == ExpertScope::kRange ? 4 : 0;
      c.residual = true;
      const ExpertProblems p = expert_problems(c);
      const ExpertMlp::Problem one = ExpertMlp::at_tokens(*first_run<ExpertMlp>(moe_graph(c).graph), 7);
      const ExpertGemm::Problem up = ExpertGemm::at_tokens(p.up, 7),
                                down = ExpertGemm::at_tokens(p.down, 7 * slots_of(c));
      EXPECT_EQ(fields_text(ExpertMlp::up(one)), fields_text(up)) << model;
      EXPECT_EQ(fields_text(ExpertMlp::down(one)), fields_text(down)) << model;
      EXPECT_EQ(fields_text(ExpertMlp::combine(one)), fields_text(Combine::at_tokens(combine_problem(c), 7)))
          << model;
      EXPECT_EQ(fields_text(ExpertMlp::group(one)), fields_text(GroupRows::at_tokens(group_problem(c), 7)))
          << model;
    }
  }
}

// In bf16, prefill moves half the bytes of f32 between down and combine, at any count.
TEST(MoePlanOnCuda, AnswersAreInBf16AtEveryCount) {
  const DeviceInfo h200 = known_device("h200").value();
  for (const char* model : {"gpt-oss-120b", "deepseek-v4-flash", "deepseek-v3", "glm-4.5-air"}) {
    MoeConfig config = known_moe(model).value();
    config.layout = layout_for(Backend::kCuda);
    const auto step = plan_moe(h200, cuda::catalog(), config, 6000);
    ASSERT_TRUE(step.ok()) << step.status().message;
    std::set<std::string_view> seen;
    for (const auto& kind : step.value().pieces().kinds())
      for (const int64_t tokens : {1, 64, 65, 1500, 6000}) {
        const std::unique_ptr<AnyProblem> problem = kind->problem(tokens);
        const std::string text = problem->text();
        if (problem->op() == ExpertGemm::kName) {
          if (text.find(" slots=0") != std::string::npos) {
            EXPECT_NE(text.find(" y=bf16"), std::string::npos) << text;
          }
        } else if (text.find(" g=") != std::string::npos) {
          seen.insert(problem->op());
          EXPECT_NE(text.find(" g=bf16"), std::string::npos) << text;
        }
      }
    EXPECT_EQ(seen, (std::set<std::string_view>{"combine", "expert_mlp", "grouped_mlp"})) << model;
  }
}

TEST(MoePlanOnCuda, AnOlderGpuIsRefusedWithTheReason) {
  DeviceInfo ampere = known_device("h200").value();
  ampere.sm = 80;
  PaperDevice device(ampere);
  MoeConfig config = known_moe("gpt-oss-20b").value();
  config.layout = layout_for(Backend::kCuda);
  const Status status = Moe::plan(device, config, 4).status();
  EXPECT_EQ(status.code, Code::kUnsupported);
  EXPECT_NE(status.message.find("sm90"), std::string::npos) << status.message;
}

}  // namespace sluice::test
