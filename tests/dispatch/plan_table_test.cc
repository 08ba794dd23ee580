#include <gtest/gtest.h>

#include "backends/cpu/device.h"
#include "dispatch/fake_candidates.h"
#include "dispatch/plan.h"

namespace sluice::test {
namespace {

Result<PlanTable<Gemm>> table_of(const std::vector<const Candidate<Gemm>*>& candidates, int64_t tokens_max,
                                 const Policy& policy = {}) {
  return PlanTable<Gemm>::make(fake_device(), candidates, {}, tokens_max, policy);
}

TEST(PlanTable, StepsAreWhereTheDecisionChanges) {
  Candidate<Gemm> level = fake("level"), slope = fake("slope");
  slope.cost_us = steep;
  const auto made = table_of({&level, &slope}, 100);
  ASSERT_TRUE(made.ok()) << made.status().message;
  const auto& steps = made.value().steps();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].first, 0);
  EXPECT_EQ(steps[0].plan.kernel(), "slope");
  EXPECT_EQ(steps[1].first, 10) << "at 10 both cost 10, and the table's first wins";
  EXPECT_EQ(steps[1].plan.kernel(), "level");
  for (int64_t tokens = 0; tokens <= 100; ++tokens) {
    const std::vector<const Candidate<Gemm>*> candidates = {&level, &slope};
    const Decision d = decide<Gemm>({.tokens = tokens}, fake_device(), candidates);
    EXPECT_EQ(made.value().at(tokens).kernel(), d.verdicts[static_cast<size_t>(d.chosen)].candidate);
  }
}

// The planning of a whole model asks for these costs thousands of times.
TEST(PlanTable, CostsOfExaminedCountsAreKept) {
  static int64_t asked = 0;
  Candidate<Gemm> level = fake("level"), slope = fake("slope");
  slope.cost_us = [](const Gemm::Problem& p, const DeviceInfo& d) { return ++asked, steep(p, d); };
  const auto made = table_of({&level, &slope}, 200);
  ASSERT_TRUE(made.ok()) << made.status().message;
  asked = 0;
  for (const int64_t tokens : {0, 1, 5, 9, 10, 64, 66, 200})
    EXPECT_EQ(made.value().cost_us(tokens, fake_device()), std::min<double>(10, static_cast<double>(tokens)));
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(made.value().cost_us(65, fake_device()), 10) << "a count that the table did not examine";
}

TEST(PlanTable, OnlyMultiplesOfTheUnitAreExamined) {
  static std::vector<int64_t> asked;
  Candidate<Gemm> level = fake("level"), slope = fake("slope");
  slope.cost_us = [](const Gemm::Problem& p, const DeviceInfo& d) {
    return asked.push_back(p.tokens), steep(p, d);
  };
  asked.clear();
  const std::vector<const Candidate<Gemm>*> candidates = {&level, &slope};
  const auto made = PlanTable<Gemm>::make(fake_device(), candidates, {}, 400, {}, 4, 0, 4);
  ASSERT_TRUE(made.ok()) << made.status().message;
  ASSERT_EQ(made.value().steps().size(), 2u);
  EXPECT_EQ(made.value().steps()[0].first, 4);
  EXPECT_EQ(made.value().steps()[1].first, 12) << "the first multiple of 4 at which the level costs no more";
  EXPECT_EQ(made.value().steps()[0].plan.workspace_bytes(), 8u * 4);
  for (const int64_t tokens : asked) EXPECT_EQ(tokens % 4, 0);
  EXPECT_LT(asked.size(), 110u) << "as many counts as units";
}

TEST(PlanTable, AStepsWorkspaceCoversAllOfIt) {
  Candidate<Gemm> level = fake("level"), slope = fake("slope");
  slope.cost_us = steep;
  const auto made = table_of({&level, &slope}, 100);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made.value().steps()[0].plan.workspace_bytes(), 9u * 4);
  EXPECT_EQ(made.value().steps()[1].plan.workspace_bytes(), 100u * 4);
  EXPECT_EQ(made.value().workspace_bytes(), 100u * 4);
}

TEST(PlanTable, AGapIsAnErrorThatNamesIt) {
  Candidate<Gemm> narrow = fake("narrow");
  narrow.supports = few_tokens;
  const auto made = table_of({&narrow}, 100);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code, Code::kUnsupported);
  EXPECT_NE(made.status().message.find("tokens=9 "), std::string::npos) << made.status().message;
  EXPECT_TRUE(table_of({&narrow}, 8).ok());
}

// Two batch-invariant kernels may give different bits, so one of them must serve every count.
TEST(PlanTable, BatchInvarianceIsOneKernelForEveryCount) {
  Candidate<Gemm> level = fake("level"), slope = fake("slope"), narrow = fake("narrow"),
                  loose = fake("loose");
  level.batch_invariant = slope.batch_invariant = narrow.batch_invariant = true;
  slope.cost_us = steep;
  narrow.supports = few_tokens;
  const Policy invariant{.batch_invariant = true};
  ASSERT_EQ(table_of({&level, &slope}, 100).value().steps().size(), 2u);
  for (const auto& [tokens, kernel] : {std::pair<int64_t, std::string>{8, "slope"}, {4096, "level"}}) {
    const auto made = table_of({&loose, &level, &slope}, tokens, invariant);
    ASSERT_TRUE(made.ok()) << made.status().message;
    ASSERT_EQ(made.value().steps().size(), 1u) << tokens;
    EXPECT_EQ(made.value().steps()[0].plan.kernel(), kernel) << tokens;
  }
  const auto none = table_of({&loose, &narrow}, 100, invariant);
  EXPECT_EQ(none.status().code, Code::kUnsupported);
  EXPECT_NE(none.status().message.find("wanted one kernel for 1 to 100 tokens"), std::string::npos)
      << none.status().message;
  EXPECT_TRUE(table_of({&loose, &narrow}, 8, invariant).ok());
}

// A call without tokens has no bits to keep, so a kernel that rejects zero tokens can still serve all other
// counts.
TEST(PlanTable, BatchInvarianceBeginsAtOneToken) {
  Candidate<Gemm> busy = fake("busy"), dear = fake("dear");
  busy.batch_invariant = dear.batch_invariant = true;
  busy.supports = [](const Gemm::Problem& p, const DeviceInfo&) {
    Refusal r;
    r.need(p.tokens > 0, "tokens > 0", "tokens", p.tokens);
    return r;
  };
  dear.cost_us = steep;
  const auto made = table_of({&dear, &busy}, 4096, {.batch_invariant = true});
  ASSERT_TRUE(made.ok()) << made.status().message;
  EXPECT_EQ(made.value().at(0).kernel(), "dear");
  for (const int64_t tokens : {1, 2, 4096}) EXPECT_EQ(made.value().at(tokens).kernel(), "busy") << tokens;
  EXPECT_EQ(table_of({&busy}, 8, {.batch_invariant = true}).status().code, Code::kUnsupported);
}

// Steps also begin where launches change; a table that samples token counts still finds these counts.
TEST(PlanTable, StepsAreWhereLaunchesChange) {
  Candidate<Gemm> c = fake("c");
  c.cost_us = nullptr, c.workspace_bytes = nullptr;
  c.configs = [](const Gemm::Problem& p, const DeviceInfo&) {
    const int width = p.tokens < 1000 ? 1 : p.tokens < 5003 ? 2 : 3;
    return std::vector<Config>{{.name = "one",
                                .cost_us = 1,
                                .workspace_bytes = static_cast<size_t>(p.tokens),
                                .launches = {{.value = {width}}}}};
  };
  const auto made = table_of({&c}, 16384);
  ASSERT_TRUE(made.ok()) << made.status().message;
  const auto& steps = made.value().steps();
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[1].first, 1000);
  EXPECT_EQ(steps[2].first, 5003);
  EXPECT_EQ(made.value().at(5002).config().launches[0].value[0], 2);
  EXPECT_EQ(made.value().at(5003).config().launches[0].value[0], 3);
  EXPECT_EQ(made.value().workspace_bytes(), 16384u);
  EXPECT_EQ(steps[0].plan.workspace_bytes(), 999u);
}

// Where configurations differ in their bits, one of them must serve every count.
TEST(PlanTable, BatchInvarianceIsOneConfigurationWhereItDecidesTheBits) {
  Candidate<Gemm> c = fake("c");
  c.batch_invariant = true;
  c.cost_us = nullptr, c.workspace_bytes = nullptr;
  c.configs = [](const Gemm::Problem& p, const DeviceInfo&) {
    std::vector<Config> out = {{.name = "small", .cost_us = steep(p, {})}, {.name = "large", .cost_us = 10}};
    return out;
  };
  const Policy invariant{.batch_invariant = true};
  EXPECT_EQ(table_of({&c}, 4096, invariant).value().steps().size(), 2u);
  c.config_decides_bits = true;
  const auto made = table_of({&c}, 4096, invariant);
  ASSERT_TRUE(made.ok()) << made.status().message;
  ASSERT_EQ(made.value().steps().size(), 1u);
  EXPECT_EQ(made.value().steps()[0].plan.choice(), "c:large");
  EXPECT_EQ(table_of({&c}, 8, invariant).value().steps()[0].plan.choice(), "c:small");
}

TEST(PlanTable, TheBoundHolds) {
  EXPECT_FALSE(table_of({}, -1).ok());
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto made = PlanTable<Gemm>::make(*device, {.experts = 2, .hidden = 2}, 4);
  ASSERT_TRUE(made.ok()) << made.status().message;
  for (int64_t tokens : {int64_t{-1}, int64_t{5}, INT64_MAX}) {
    const Status status = made.value().run(tokens, {}, {}, device->stream());
    EXPECT_EQ(status.code, Code::kInvalidArgument);
    EXPECT_EQ(status.message,
              "router_gemm: wanted 0 to 4 tokens (the plan's bound), found " + std::to_string(tokens));
  }
}

TEST(PlanTable, RunsTheRequestedCount) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto made =
      PlanTable<Gemm>::make(*device, {.experts = 1, .hidden = 2, .x = DType::kF32, .w = DType::kF32}, 4);
  ASSERT_TRUE(made.ok()) << made.status().message;
  float x[6] = {1, 2, 3, 4, 5, 6}, w[2] = {1, 10}, y[4] = {0, 0, 0, -1};
  const Gemm::Args args{.x = make_tensor(x, DType::kF32, {3, 2}),
                        .w = make_tensor(w, DType::kF32, {1, 2}),
                        .bias = {},
                        .y = make_tensor(y, DType::kF32, {3, 1})};
  std::vector<std::byte> scratch(made.value().workspace_bytes() + 1);
  const Status status = made.value().run(3, args, {scratch.data(), scratch.size()}, device->stream());
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(y[0], 21);
  EXPECT_EQ(y[1], 43);
  EXPECT_EQ(y[2], 65);
  EXPECT_EQ(y[3], -1);
  EXPECT_FALSE(made.value().run(2, args, {scratch.data(), scratch.size()}, device->stream()).ok());
}

// Bounds beyond the contract, or so large that planning would not end, are rejected before any kernel is
// asked.
TEST(PlanTable, AHugeBoundIsRefusedAtOnce) {
  static int64_t asked = 0;
  asked = 0;
  Candidate<Gemm> counting = fake("counting");
  counting.supports = [](const Gemm::Problem&, const DeviceInfo&) { return ++asked, Refusal{}; };
  for (const bool invariant : {false, true}) {
    counting.batch_invariant = true;
    for (const int64_t tokens : {INT64_MAX, int64_t{1'000'000'000'000}, kTableTokensMax + 1}) {
      const Status status = table_of({&counting}, tokens, {.batch_invariant = invariant}).status();
      EXPECT_EQ(status.code, Code::kInvalidArgument);
      EXPECT_EQ(status.message,
                "router_gemm: tokens_max: wanted 0 to 16777216, found " + std::to_string(tokens));
    }
    const Status status = table_of({&counting}, 16385, {.batch_invariant = invariant}).status();
    EXPECT_EQ(status.code, Code::kInvalidArgument);
    EXPECT_NE(status.message.find("needs tokens from 0 to 16384; tokens=16385"), std::string::npos)
        << status.message;
  }
  EXPECT_EQ(asked, 0);
  EXPECT_TRUE(table_of({&counting}, 16384).ok());
}

// A stream names the device of its backend that it belongs to.
TEST(PlanTable, RunsOnlyOnStreamsOfItsDevice) {
  Candidate<Gemm> gpu = fake("gpu");
  gpu.backend = Backend::kCuda;
  gpu.workspace_bytes = [](const Gemm::Problem&, const DeviceInfo&) { return size_t{0}; };
  DeviceInfo second = fake_device();
  second.backend = Backend::kCuda, second.index = 1;
  const std::vector<const Candidate<Gemm>*> candidates = {&gpu};
  const Gemm::Problem problem{.tokens = 1, .experts = 1, .hidden = 2, .x = DType::kF32, .w = DType::kF32};
  alignas(256) float x[2] = {}, w[2] = {}, y[1] = {};
  const auto tensor = [](float* data, int64_t columns) {
    return make_tensor(data, DType::kF32, {1, columns}, Backend::kCuda);
  };
  const Gemm::Args args{.x = tensor(x, 2), .w = tensor(w, 2), .bias = {}, .y = tensor(y, 1)};
  DeviceQueue queues[] = {{.device = 0}, {.device = 1}};
  const auto plan = make_plan<Gemm>(second, candidates, problem);
  ASSERT_TRUE(plan.ok()) << plan.status().message;
  const auto table = PlanTable<Gemm>::make(second, candidates, problem, 4);
  ASSERT_TRUE(table.ok()) << table.status().message;
  const std::string refused =
      "router_gemm: stream: wanted a stream of cuda device 1 (the plan's device), found a stream of device 0";
  EXPECT_EQ(plan.value().run(args, {}, {Backend::kCuda, &queues[0]}).message, refused);
  EXPECT_EQ(table.value().run(1, args, {}, {Backend::kCuda, &queues[0]}).message, refused);
  EXPECT_TRUE(plan.value().run(args, {}, {Backend::kCuda, &queues[1]}).ok());
  EXPECT_TRUE(table.value().run(1, args, {}, {Backend::kCuda, &queues[1]}).ok());
}

}  // namespace
}  // namespace sluice::test
