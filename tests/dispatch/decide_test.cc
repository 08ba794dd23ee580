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
            "needs its own backend; the device is fake (1 thread; no vector features)");
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
  EXPECT_NE(refused.status().message.find("a: needs not to be excluded; policy.force=b"), std::string::npos);
}

TEST(Decide, AnUnknownForceIsAnError) {
  Candidate<Gemm> first = fake("a");
  const Decision d = ask({&first}, {}, {.force = "c"});
  EXPECT_EQ(d.chosen, -1);
  EXPECT_EQ(d.status().code, Code::kInvalidArgument);
  EXPECT_NE(d.status().message.find("policy.force"), std::string::npos) << d.status().message;
}

TEST(Decide, BatchInvarianceIsAskedOfTheCard) {
  Candidate<Gemm> fast = fake("fast"), steady = fake("steady");
  fast.cost_us = [](const Gemm::Problem&, const DeviceInfo&) { return 1.0; };
  steady.batch_invariant = true;
  EXPECT_EQ(ask({&fast, &steady}).chosen, 0);
  EXPECT_EQ(ask({&fast, &steady}, {}, {.batch_invariant = true}).chosen, 1);
  EXPECT_EQ(ask({&fast}, {}, {.batch_invariant = true}).chosen, -1);
}

TEST(Decide, WhatTheContractRefusesNoKernelIsAsked) {
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

TEST(Explain, SaysWhatACandidateLaunchesWhereItsNameDoesNot) {
  Candidate<Gemm> two = fake("a"), narrow = fake("b");
  two.launches = narrow.launches = [](const Gemm::Problem& p, const DeviceInfo&) {
    return "one of " + std::to_string(p.tokens) + ", then another";
  };
  narrow.supports = few_tokens;
  const Table table = {&two, &narrow};
  const Decision d = decide_in_words<Gemm>({.tokens = 9}, fake_device(), table);
  EXPECT_EQ(d.verdicts[0].launches, "one of 9, then another");
  EXPECT_EQ(d.verdicts[1].launches, "");  // refused
  EXPECT_NE(explain_text("router_gemm", "", fake_device(), d)
                .find("36 B\n                one of 9, then another\n"),
            std::string::npos)
      << explain_text("router_gemm", "", fake_device(), d);
}

TEST(Explain, NobodyAcceptsIsSaid) {
  EXPECT_NE(explain_text("router_gemm", "", fake_device(), ask({})).find("!! nobody accepts"),
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
