// Graphs on a CPU: which runs of stages a kernel of several may cover, where values are, and what a step runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "backends/cpu/device.h"
#include "dispatch/plan.h"
#include "graph/runs.h"
#include "graph/step.h"
#include "models/family.h"
#include "nn/decoder_graph.h"
#include "nn/moe/graph.h"

namespace sluice::test {
namespace {

constexpr int64_t kHidden = 32;

RmsNorm::Problem norm_problem() {
  return {.tokens = 0, .hidden = kHidden, .eps = 1e-5, .x = DType::kF32, .w = DType::kF32, .y = DType::kF32};
}

// x -> a -> b -> ... -> y, each the norm of the one before it.
Graph chain_of_norms(int count) {
  Graph g;
  const ValueId x = g.call("x"), y = g.call("y"), weight = g.held("weight");
  ValueId from = x;
  using A = RmsNorm::Args;
  for (int i = 0; i < count; ++i) {
    const ValueId to = i + 1 == count ? y : g.between("v" + std::to_string(i));
    g.begin_layer(i);
    g.add<RmsNorm>("norm", norm_problem(), {{&A::x, from}, {&A::weight, weight}, {&A::y, to}});
    from = to;
  }
  return g;
}

// Attention from its projection, or from the norms of its heads, to the cache: two heads of queries and one each of keys and values,
// eight elements wide, in rows of 32.
struct ToTheCache {
  bool projected = false, normed = true;
  enum class Between : uint8_t {
    kNothing,
    kStage,
    kCut
  } between = Between::kNothing;  // behind the norm of queries
  double eps_of_keys = 1e-6;
  int64_t normed_keys = 16, stored_keys = 16;  // columns
  int64_t read = -1;                           // a head that a later stage reads, by its column; -1: none
  bool kept = false, callers = false;          // the rows: after the step, or all the time
};
Graph to_the_cache(const ToTheCache& how) {
  constexpr int64_t kHead = 8;
  constexpr DType kF = DType::kF32;
  Graph g;
  const ValueId x = g.call("x"), weight = g.held("weight"),
                qkv = how.callers ? g.call("qkv", 32) : g.between("qkv"), other = g.between("other");
  if (how.kept) g.keep(qkv);
  using L = Linear::Args;
  if (how.projected)
    g.add<Linear>("qkv", {.tokens = 0, .features = 32, .width = 16, .x = kF, .y = kF},
                  {{&L::x, x}, {&L::w, weight}, {&L::y, qkv}});
  using N = RmsNorm::Args;
  const auto norm = [&](const char* name, int64_t heads, double eps, const Bind& from, const Bind& to) {
    g.add<RmsNorm>(name, {.tokens = 0, .hidden = kHead, .eps = eps, .x = kF, .y = kF, .heads = heads},
                   {{&N::x, from}, {&N::weight, weight}, {&N::y, to}});
  };
  if (how.normed) {
    const Bind keys(qkv, how.normed_keys);
    norm("q_norm", 2, 1e-6, qkv, qkv);
    if (how.between == ToTheCache::Between::kStage) norm("between", 1, 1e-6, other, other);
    if (how.between == ToTheCache::Between::kCut) g.cut();
    norm("k_norm", 1, how.eps_of_keys, keys, keys);
  }
  using R = Rope::Args;
  g.add<Rope>("rope", {.tokens = 0, .heads = 3, .head_dim = kHead, .rotary = kHead, .x = kF},
              {{&R::positions, g.call("positions")}, {&R::table, g.held("table")}, {&R::x, qkv}});
  using W = KvWrite::Args;
  g.add<KvWrite>("kv_write", {.tokens = 0, .kv_heads = 1, .head_dim = kHead, .kv = kF},
                 {{&W::k, Bind(qkv, how.stored_keys)},
                  {&W::v, Bind(qkv, 24)},
                  {&W::slot_of, g.call("slot_of")},
                  {&W::k_cache, g.held("k_cache")},
                  {&W::v_cache, g.held("v_cache")}});
  if (how.read >= 0) norm("reader", 1, 1e-6, Bind(qkv, how.read), other);
  return g;
}

struct Floats {
  explicit Floats(int64_t rows, float value = 0)
      : data(static_cast<size_t>(rows * kHidden), value), rows(rows) {}
  Tensor view() { return make_tensor(data.data(), DType::kF32, {rows, kHidden}); }
  std::vector<float> data;
  int64_t rows;
};

}  // namespace

TEST(Graph, AStepIsItsStagesInOrder) {
  const auto device = cpu::open_device({.threads = 2}).value();
  const int64_t tokens = 5;
  for (const int count : {1, 2, 7}) {
    auto step = Step::plan("chain", device->info(), device->catalog(), chain_of_norms(count), 8);
    ASSERT_TRUE(step.ok()) << step.status().message;
    Floats x(tokens), y(tokens), wanted(tokens), weight(1, 1.5f);
    for (size_t i = 0; i < x.data.size(); ++i) x.data[i] = static_cast<float>(i % 7) - 2;
    Tensor w = weight.view();
    w.rank = 1, w.shape = {kHidden}, w.stride = {1};
    const std::array call = {x.view(), y.view()};
    const std::array held = {w};
    std::vector<std::byte> workspace(step.value().workspace_bytes() + 256);
    KernelRuns runs;
    const Workspace scratch{workspace.data(), workspace.size()};
    ASSERT_TRUE(
        step.value().run(tokens, {.call = call, .held = held}, scratch, device->stream(), &runs).ok());
    const auto plan = make_plan<RmsNorm>(*device, RmsNorm::at_tokens(norm_problem(), tokens)).value();
    Tensor from = x.view();
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(
          plan.run({.x = from, .weight = w, .residual = {}, .y = wanted.view()}, {}, device->stream()).ok());
      from = wanted.view();
    }
    EXPECT_EQ(y.data, wanted.data) << count;
    const auto kernels = step.value().kernels(tokens);
    ASSERT_EQ(kernels.size(), static_cast<size_t>(count));
    EXPECT_EQ(kernels.back().layer, count - 1);
    ASSERT_EQ(runs.all().size(), 1u);
    EXPECT_EQ(runs.all()[0].runs, count);
    const auto checks =
        step.value().check(tokens, {.call = call, .held = held}, scratch, *device, device->stream());
    ASSERT_TRUE(checks.ok()) << checks.status().message;
    for (const StageCheck& c : checks.value()) EXPECT_LE(c.worst, 1) << c.detail;
  }
}

// Of a chain two neighbours live at a time, however long it is; none of them where another one is.
TEST(Graph, AValueGivesItsPlaceToWhatComesAfterItsLastReader) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const int64_t tokens = 64;
  const auto bytes = [&](int count) {
    return Step::plan("chain", device->info(), device->catalog(), chain_of_norms(count), tokens)
        .value()
        .workspace_bytes();
  };
  const size_t one = tokens * kHidden * sizeof(float);
  EXPECT_EQ(bytes(1), 0u);
  EXPECT_EQ(bytes(2), one);
  EXPECT_EQ(bytes(3), 2 * one);
  EXPECT_EQ(bytes(40), 2 * one);
}

TEST(Graph, PartsOfAStepRunByThemselves) {
  const auto device = cpu::open_device({.threads = 1}).value();
  Graph g;
  const ValueId x = g.call("x"), y = g.call("y"), weight = g.held("weight"), middle = g.between("middle");
  using A = RmsNorm::Args;
  g.add<RmsNorm>("first", norm_problem(), {{&A::x, x}, {&A::weight, weight}, {&A::y, middle}});
  g.cut();
  g.add<RmsNorm>("second", norm_problem(), {{&A::x, middle}, {&A::weight, weight}, {&A::y, y}});
  g.keep(middle);
  const auto step = Step::plan("two", device->info(), device->catalog(), std::move(g), 3).value();
  Floats in(3, 2), out(3, -1), weight_row(1, 1);
  Tensor w = weight_row.view();
  w.rank = 1, w.shape = {kHidden}, w.stride = {1};
  const std::array call = {in.view(), out.view()};
  const std::array held = {w};
  std::vector<std::byte> workspace(step.workspace_bytes());
  const Workspace ws{workspace.data(), workspace.size()};
  ASSERT_TRUE(step.run_part(0, 3, {.call = call, .held = held}, ws, device->stream()).ok());
  EXPECT_EQ(out.data[0], -1);
  const Tensor kept = step.between(middle, DType::kF32, {3, kHidden}, ws);
  EXPECT_NEAR(kept.as<float>()[0], 1, 1e-4);
  for (int64_t i = 0; i < elements_of(kept); ++i) kept.as<float>()[i] = 3;
  ASSERT_TRUE(step.run_part(1, 3, {.call = call, .held = held}, ws, device->stream()).ok());
  EXPECT_NEAR(out.data[0], 1, 1e-4);
}

TEST(Graph, WhatDoesNotFitIsRefusedByName) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto plan = [&](int64_t tokens, const Policy& policy) {
    return Step::plan("chain", device->info(), device->catalog(), chain_of_norms(2), tokens,
                      {.policy = policy});
  };
  EXPECT_EQ(plan(0, {}).status().message, "chain: tokens_max: wanted 1 to 16777216, found 0");
  EXPECT_NE(plan(4, {.force = "cpu.linear.dot"})
                .status()
                .message.find("wanted a kernel of one of the operations rms_norm"),
            std::string::npos);
  EXPECT_NE(plan(4, {.force = "cpu.rms_norm.nothing"}).status().message.find("chain norm: "),
            std::string::npos);
  const auto step = plan(4, {}).value();
  Floats x(5);
  const std::array call = {x.view(), x.view()};
  EXPECT_EQ(step.run(5, {.call = call, .held = {}}, {}, device->stream()).message,
            "chain: wanted 0 to 4 tokens (the plan's bound), found 5");
  EXPECT_NE(
      step.run(4, {.call = call, .held = {}}, {}, device->stream()).message.find("chain: workspace: wanted "),
      std::string::npos);
}

// A run leaves values unwritten only where nobody else reads them; a stage between its own breaks it, and so does a cut.
TEST(GraphRuns, CoverWhatNobodyElseSees) {
  MoeConfig config = known_moe("gpt-oss-20b").value();
  EXPECT_TRUE(first_run<ExpertMlp>(moe_graph(config).graph).has_value());
  EXPECT_TRUE(first_run<GroupedMlp>(moe_graph(config).graph).has_value());
  EXPECT_TRUE(first_run<RouterRoute>(moe_graph(config).graph).has_value());
  EXPECT_TRUE(first_run<RouteGroup>(moe_graph(config).graph).has_value());
  EXPECT_FALSE(first_run<NormRouterRoute>(moe_graph(config).graph).has_value());
  EXPECT_FALSE(first_run<CombineNorm>(moe_graph(config).graph).has_value());
  // Who reads h, or the groups, besides.
  for (const char* value : {"h", "position", "g"}) {
    MoeGraph made = moe_graph(config);
    for (size_t i = 0; i < made.graph.values().size(); ++i)
      if (made.graph.values()[i].name == value) {
        using C = CountExperts::Args;
        made.graph.add<CountExperts>("reader", {}, {{&C::ids, static_cast<ValueId>(i)}});
      }
    EXPECT_FALSE(first_run<ExpertMlp>(made.graph).has_value()) << value;
    EXPECT_EQ(first_run<GroupedMlp>(made.graph).has_value(), std::string_view(value) != "h") << value;
  }
  config.lora_rank = 8, config.lora_adapters = 2;
  EXPECT_FALSE(first_run<RouterRoute>(moe_graph(config).graph).has_value()) << "adapters stand between";
  EXPECT_TRUE(first_run<RouteGroup>(moe_graph(config).graph).has_value());
  config.lora_rank = config.lora_adapters = 0;
  config.per_expert = true;
  EXPECT_FALSE(first_run<ExpertMlp>(moe_graph(config).graph).has_value()) << "one activation for all";
  config.per_expert = false;
  config.norm_x = config.norm_y = true;
  EXPECT_TRUE(first_run<NormRouterRoute>(moe_graph(config).graph).has_value());
  ASSERT_TRUE(first_run<CombineNorm>(moe_graph(config).graph).has_value());
  EXPECT_FALSE(first_run<CombineNorm>(moe_graph(config).graph)->x_unaligned);
  config.x_unaligned = true;
  EXPECT_TRUE(first_run<CombineNorm>(moe_graph(config).graph)->x_unaligned);
  EXPECT_TRUE(first_run<NormRouterRoute>(moe_graph(config).graph)->x_unaligned);
}

// Of whole models: who norms queries and keys has the run, in every layer.
TEST(GraphRuns, HeadsAreNormedTurnedAndStoredWhereTheModelNormsThem) {
  const auto run_of = [](const std::string& name) {
    const auto model = read_model_config(std::string(SLUICE_SOURCE_DIR) + "/tests/data/" + name);
    EXPECT_TRUE(model.ok()) << model.status().message;
    const LayersGraph layers = layers_graph(model.value().decoder, {}, 1, false);
    int64_t runs = 0;
    for (size_t i = 0; i < layers.graph.stages().size(); ++i)
      runs += run_at<QkNormRopeKvWrite>(layers.graph, i).has_value();
    EXPECT_EQ(runs, name == "gpt-oss-20b" ? 0 : std::ssize(model.value().decoder.layers)) << name;
    return first_run<QkNormRopeKvWrite>(layers.graph);
  };
  EXPECT_FALSE(run_of("gpt-oss-20b").has_value());
  EXPECT_TRUE(run_of("qwen3-235b-a22b").has_value());
  const auto found = run_of("qwen3-30b-a3b");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(std::pair(found->rotation.rope.heads, found->rotation.kv_heads),
            std::pair(int64_t{32}, int64_t{4}));
  EXPECT_EQ(found->rotation.rope.head_dim, 128);
  EXPECT_EQ(found->eps, 1e-6);
  EXPECT_TRUE(found->rotation.settled);
  EXPECT_FALSE(found->x_unaligned);
}

// The norms are of the heads that turn, alike, and nothing stands between; what a kernel leaves of keys and values nobody reads.
TEST(GraphRuns, HeadsOnTheirWayToTheCacheAreReadNowhereElse) {
  using Between = ToTheCache::Between;
  const auto normed = [](const ToTheCache& how) {
    return first_run<QkNormRopeKvWrite>(to_the_cache(how)).has_value();
  };
  const auto turned = [](const ToTheCache& how) {
    return first_run<RopeKvWrite>(to_the_cache(how)).has_value();
  };
  const auto projected = [](ToTheCache how) {
    how.projected = true, how.normed = false;
    return first_run<QkvRopeKvWrite>(to_the_cache(how)).has_value();
  };
  EXPECT_TRUE(normed({}));
  EXPECT_FALSE(normed({.normed = false}));
  EXPECT_FALSE(normed({.between = Between::kStage}));
  EXPECT_FALSE(normed({.between = Between::kCut}));
  EXPECT_FALSE(normed({.eps_of_keys = 1e-5})) << "one eps for both norms";
  EXPECT_FALSE(normed({.normed_keys = 24})) << "values are normed";
  EXPECT_FALSE(normed({.normed_keys = 24, .stored_keys = 24}));
  EXPECT_TRUE(turned({.normed_keys = 24}));
  EXPECT_TRUE(projected({}));
  // Queries, keys and values once more, and all of them.
  for (const int64_t read : {0, 8, 16, 24}) {
    EXPECT_EQ(normed({.read = read}), read != 16) << read;
    EXPECT_EQ(turned({.read = read}), read != 16) << read;
    EXPECT_EQ(projected({.read = read}), read < 16) << read;
  }
  EXPECT_FALSE(normed({.callers = true}) || turned({.callers = true}) || projected({.callers = true}))
      << "the caller may read what its stages leave";
  EXPECT_FALSE(normed({.kept = true}) || turned({.kept = true}) || projected({.kept = true}));
}

}  // namespace sluice::test
