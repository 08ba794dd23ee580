#include "dispatch/decide.h"

#include <gtest/gtest.h>

#include "dispatch/explain.h"
#include "dispatch/fake_candidates.h"

namespace sluice::test {
namespace {

using Table = std::vector<const Candidate<Gemm>*>;

Decision ask(const Table& table, const Gemm::Problem& problem = {}, const Policy& policy = {}) {
  return decide<Gemm>(problem, fake_device(), table, policy);
}

TEST(Decide, TheLeastCostWins) {
  Candidate<Gemm> first = fake("a"), second = fake("b");
  second.cost_us = steep;
  EXPECT_EQ(ask({&first, &second}, {.tokens = 9}).chosen, 1);
  EXPECT_EQ(ask({&first, &second}, {.tokens = 11}).chosen, 0);
}

TEST(Decide, TiesGoToTheFirst) {
  Candidate<Gemm> first = fake("a"), second = fake("b");
  second.cost_us = steep;
  EXPECT_EQ(ask({&first, &second}, {.tokens = 10}).chosen, 0);
  EXPECT_EQ(ask({&second, &first}, {.tokens = 10}).chosen, 0);
}

TEST(Decide, RefusedCandidatesKeepEveryReason) {
  Candidate<Gemm> narrow = fake("narrow"), wide = fake("wide");
  narrow.supports = few_tokens;
  const Decision d = ask({&narrow, &wide}, {.tokens = 9, .hidden = 3});
  EXPECT_EQ(d.chosen, 1);
  ASSERT_EQ(d.verdicts[0].refusal.reasons().size(), 2u);
  EXPECT_EQ(d.verdicts[0].refusal.reasons()[0], "needs tokens <= 8 (a test); tokens=9");
  EXPECT_EQ(d.verdicts[0].refusal.reasons()[1], "needs hidden % 2 == 0 (a test); hidden=3");
}

TEST(Decide, OtherBackendsAreRefusedUnasked) {
  Candidate<Gemm> other = fake("other");
  other.backend = Backend::kCuda;
  other.supports = nullptr;  // a call would crash
  const Decision d = ask({&other});
  EXPECT_EQ(d.chosen, -1);
  EXPECT_EQ(d.verdicts[0].refusal.line(),
            "needs a device of backend cuda; the device is fake (1 thread; no vector features)");
}

TEST(Decide, ForceExcludesTheOthersAndNeverFallsBack) {
  Candidate<Gemm> first = fake("a"), second = fake("b");
  second.cost_us = [](const Gemm::Problem&, const DeviceInfo&) { return 1e9; };
  EXPECT_EQ(ask({&first, &second}, {}, {.force = "b"}).chosen, 1);
  second.supports = few_tokens;
  const Decision refused = ask({&first, &second}, {.tokens = 9}, {.force = "b"});
  EXPECT_EQ(refused.chosen, -1);
  EXPECT_EQ(refused.status().code, Code::kUnsupported);
  EXPECT_NE(refused.status().message.find("tokens=9"), std::string::npos) << refused.status().message;
  EXPECT_NE(refused.status().message.find("a: needs policy.force to allow this kernel; policy.force=b"),
            std::string::npos);
}

TEST(Decide, ReasonsOfAllConfigurationsAreSaidOnce) {
  Config one, other;
  one.refusal.need(false, "whole rows", "none");
  EXPECT_EQ(refusal_of({one}).line(), "needs whole rows; none");
  other = one;
  one.name = "n8", other.name = "n16";
  EXPECT_EQ(refusal_of({one, other}).line(), "needs whole rows; none");
  other.refusal.need(false, "tokens <= 4", "tokens=9");
  EXPECT_EQ(refusal_of({one, other}).line(),
            "needs configuration n8 to support this problem; needs whole rows; none; and needs configuration "
            "n16 to support this problem; needs whole rows; none; and needs tokens <= 4; tokens=9");
}

TEST(Decide, AForceWithoutANameIsAnError) {
  Candidate<Gemm> first = fake("a");
  for (const char* force : {",", ":x", ":"}) {
    const Decision d = ask({&first}, {}, {.force = force});
    EXPECT_EQ(d.status().code, Code::kInvalidArgument) << force;
    EXPECT_TRUE(d.status().message.ends_with("; " + std::string(force))) << d.status().message;
  }
}

TEST(Decide, AnUnknownForceIsAnError) {
  Candidate<Gemm> first = fake("a");
  const Decision d = ask({&first}, {}, {.force = "c"});
  EXPECT_EQ(d.chosen, -1);
  EXPECT_EQ(d.status().code, Code::kInvalidArgument);
  EXPECT_NE(d.status().message.find("policy.force"), std::string::npos) << d.status().message;
}

TEST(Decide, BatchInvarianceIsReadFromTheDescriptor) {
  Candidate<Gemm> fast = fake("fast"), steady = fake("steady");
  fast.cost_us = [](const Gemm::Problem&, const DeviceInfo&) { return 1.0; };
  steady.batch_invariant = true;
  EXPECT_EQ(ask({&fast, &steady}).chosen, 0);
  EXPECT_EQ(ask({&fast, &steady}, {}, {.batch_invariant = true}).chosen, 1);
  EXPECT_EQ(ask({&fast}, {}, {.batch_invariant = true}).chosen, -1);
}

TEST(Decide, ProblemsThatTheContractRefusesReachNoKernel) {
  Candidate<Gemm> first = fake("a");
  first.supports = nullptr;
  const Decision d = ask({&first}, {.tokens = -1, .experts = 0});
  EXPECT_EQ(d.chosen, -1);
  EXPECT_EQ(d.contract.reasons().size(), 2u);
  EXPECT_EQ(d.status().code, Code::kInvalidArgument);
}

TEST(Decide, AnEmptyTableSaysSo) {
  EXPECT_EQ(ask({}).status().code, Code::kUnsupported);
  EXPECT_EQ(ask({}).status().message, "no kernel is registered");
}

TEST(Explain, MarksTheChosenThePlannedAndTheRefused) {
  Candidate<Gemm> first = fake("a"), planned = fake("b"), narrow = fake("c");
  first.cost_us = [](const Gemm::Problem&, const DeviceInfo&) { return 12.34; };
  planned.planned = true;
  narrow.supports = few_tokens;
  narrow.planned = true;
  const Gemm::Problem problem{.tokens = 9};
  const std::string got =
      explain_text("router_gemm", "tokens=9", fake_device(), ask({&first, &planned, &narrow}, problem));
  EXPECT_EQ(got,
            "problem  router_gemm tokens=9\n"
            "device   fake (1 thread; no vector features)\n"
            "        12.3 us  a                                        workspace 36 B\n"
            "->      10.0 us  b                                        workspace 36 B"
            "  (planned: no kernel in this build)\n"
            "           -    c                                        refused"
            "  (planned: no kernel in this build)\n"
            "                needs tokens <= 8 (a test); tokens=9\n");
}

// A candidate with two configurations: one for few tokens, one for any number.
std::vector<Config> two_configs(const Gemm::Problem& p, const DeviceInfo&) {
  std::vector<Config> out = {
      {.name = "few", .cost_us = 3, .workspace_bytes = 8, .launches = {{.value = {1}}}},
      {.name = "any", .cost_us = 7, .workspace_bytes = 16, .launches = {{.value = {2}}, {.value = {3}}}}};
  out[0].refusal.need(p.tokens <= 8, "tokens <= 8 (a test)", "tokens", p.tokens);
  return out;
}
Candidate<Gemm> configured(std::string_view name) {
  Candidate<Gemm> c = fake(name);
  c.cost_us = nullptr, c.workspace_bytes = nullptr, c.enqueue = nullptr;
  c.configs = two_configs;
  c.enqueue_config = [](const Gemm::Problem&, std::span<const KernelLaunch> launches, const Gemm::Args&,
                        Workspace, Stream) {
    return invalid(std::to_string(launches.size()) + " launches, the first of " +
                   std::to_string(launches[0].value[0]));
  };
  c.launch_text = [](const Gemm::Problem&, const KernelLaunch& launch) {
    return "a launch of " + std::to_string(launch.value[0]);
  };
  return c;
}

TEST(Decide, TheCheapestConfigurationStandsForItsCandidate) {
  Candidate<Gemm> plain = fake("plain"), c = configured("c");
  plain.cost_us = [](const Gemm::Problem&, const DeviceInfo&) { return 5.0; };
  const Decision few = ask({&plain, &c}, {.tokens = 8}), many = ask({&plain, &c}, {.tokens = 9});
  EXPECT_EQ(few.chosen, 1);
  EXPECT_EQ(few.config().name, "few");
  EXPECT_EQ(few.choice().workspace_bytes, 8u);
  EXPECT_EQ(many.chosen, 0);
  EXPECT_EQ(many.verdicts[1].cost_us, 7);
  EXPECT_EQ(many.verdicts[1].configs[0].refusal.line(), "needs tokens <= 8 (a test); tokens=9");
}

TEST(Decide, ForceReachesAConfigurationByItsName) {
  Candidate<Gemm> plain = fake("plain"), c = configured("c");
  const Decision any = ask({&plain, &c}, {.tokens = 1}, {.force = "c:any"});
  ASSERT_EQ(any.chosen, 1);
  EXPECT_EQ(any.config().name, "any");
  EXPECT_EQ(any.choice().configs.size(), 1u);
  const Decision refused = ask({&plain, &c}, {.tokens = 9}, {.force = "c:few"});
  EXPECT_EQ(refused.chosen, -1);
  EXPECT_NE(refused.status().message.find("tokens=9"), std::string::npos) << refused.status().message;
  const Decision unknown = ask({&plain, &c}, {}, {.force = "c:none"});
  EXPECT_EQ(unknown.chosen, -1);
  EXPECT_NE(unknown.status().message.find("policy.force to name a configuration"), std::string::npos)
      << unknown.status().message;
}

TEST(Decide, ThePlanKeepsTheLaunchesOfItsConfiguration) {
  Candidate<Gemm> c = configured("c");
  const Table table = {&c};
  const auto plan = make_plan<Gemm>(fake_device(), table, {.tokens = 0}, {.force = "c:any"});
  ASSERT_TRUE(plan.ok()) << plan.status().message;
  EXPECT_EQ(plan.value().choice(), "c:any");
  EXPECT_EQ(plan.value().workspace_bytes(), 16u);
  EXPECT_EQ(plan.value().config().launches.size(), 2u);
  // A change of the table's names after planning has no effect: enqueue uses what the plan holds.
  EXPECT_EQ(enqueue(c, plan.value().problem(), plan.value().config().launches, {}, {}, {}).message,
            "2 launches, the first of 2");
}

TEST(Explain, PrintsTheConfigurationsAndTheLaunchesOfTheChosenOne) {
  Candidate<Gemm> c = configured("c");
  const Table table = {&c};
  EXPECT_EQ(explain_text("router_gemm", "tokens=9", fake_device(),
                         decide_in_words<Gemm>({.tokens = 9}, fake_device(), table)),
            "problem  router_gemm tokens=9\n"
            "device   fake (1 thread; no vector features)\n"
            "->       7.0 us  c                                        workspace 16 B\n"
            "               -    few  refused: needs tokens <= 8 (a test); tokens=9\n"
            "    ->       7.0 us  any\n"
            "                      a launch of 2\n"
            "                      a launch of 3\n");
}

TEST(Explain, SaysThatNoKernelAccepts) {
  EXPECT_NE(
      explain_text("router_gemm", "", fake_device(), ask({})).find("!! no kernel supports this problem"),
      std::string::npos);
}

TEST(KnownDevices, AreFoundByNameAndListedWhenNot) {
  for (const DeviceInfo& d : known_devices()) {
    ASSERT_TRUE(known_device(d.name).ok());
    EXPECT_EQ(known_device(d.name).value().name, d.name);
    EXPECT_GT(d.mem_bytes_per_us, 0) << d.name;
    EXPECT_GT(d.bf16_flops_per_us, 0) << d.name;
  }
  const Status status = known_device("h201").status();
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_NE(status.message.find("h200"), std::string::npos);
  EXPECT_NE(status.message.find("'h201'"), std::string::npos);
}

}  // namespace
}  // namespace sluice::test
