#include "graph/any_op.h"

#include <gtest/gtest.h>

#include <set>

#include "backends/backends.h"
#include "dispatch/explain.h"

namespace sluice::test {
namespace {

TEST(AnyOp, EveryOperationHasANameASummaryFieldsAndTensors) {
  std::set<std::string> seen;
  for (const std::string& name : op_names()) {
    EXPECT_TRUE(seen.insert(name).second) << name << " occurs twice";
    const auto problem = make_problem(name);
    ASSERT_TRUE(problem.ok());
    AnyProblem& p = *problem.value();
    EXPECT_EQ(p.op(), name);
    EXPECT_FALSE(p.summary().empty()) << name;
    EXPECT_FALSE(p.fields().empty()) << name;
    EXPECT_FALSE(p.slots().empty()) << name;
    for (const Field& f : p.fields()) EXPECT_FALSE(f.doc.empty()) << name << "." << f.name;
    std::set<std::string_view> slots;
    for (const SlotSpec& s : p.slots()) EXPECT_TRUE(slots.insert(s.name).second) << name << "." << s.name;
    EXPECT_LE(slots.size(), 32u) << name << " has more tensors than the C ABI allows";
    const std::string before = p.text();
    ASSERT_TRUE(p.parse(before).ok());
    EXPECT_EQ(p.text(), before);
  }
  EXPECT_GE(seen.size(), 13u);
}

TEST(AnyOp, UnknownNamesAreNamed) {
  EXPECT_EQ(make_problem("router_gem").status().message,
            "unknown operation 'router_gem'; did you mean 'router_gemm'?");
  const auto problem = make_problem("router_gemm");
  EXPECT_EQ(problem.value()->set("expert", "1").message, "unknown field 'expert'; did you mean 'experts'?");
}

TEST(AnyOp, TablesTellWhatTheyCostAtBothEnds) {
  const auto problem = make_problem("router_gemm");
  ASSERT_TRUE(problem.value()->parse("y=bf16").ok());
  const auto table = problem.value()->table(known_device("h200").value(), all_candidates(), 4096, {});
  ASSERT_TRUE(table.ok()) << table.status().message;
  int64_t next = 0;
  for (const TableStep& s : table.value()->steps()) {
    EXPECT_EQ(s.first, next);
    EXPECT_GE(s.last, s.first);
    EXPECT_GT(s.first_us, 0);
    EXPECT_GT(s.last_us, 0);
    EXPECT_FALSE(s.planned);
    next = s.last + 1;
  }
  EXPECT_EQ(next, 4097);
}

// The bound is the caller's, even if it is zero tokens.
TEST(AnyOp, TablesOfFusedOperationsAreOneKernelOrTheirStages) {
  const auto problem = make_problem("router_route");
  const DeviceInfo h200 = known_device("h200").value();
  const auto table = problem.value()->table(h200, all_candidates(), 4096, {});
  ASSERT_TRUE(table.ok()) << table.status().message;
  int64_t next = 0;
  for (const TableStep& s : table.value()->steps()) {
    EXPECT_EQ(s.first, next);
    EXPECT_GT(s.first_us, 0);
    next = s.last + 1;
    const bool stages = s.kernel.find("+cuda.route_topk.") != std::string::npos;
    EXPECT_EQ(stages, s.first == 0 || s.first > 64) << s.first << ": " << s.kernel;
    EXPECT_EQ(stages, !s.kernel.starts_with("cuda.router_route.")) << s.kernel;
  }
  EXPECT_EQ(next, 4097);
  for (const int64_t most : {0, 3}) {
    const auto bounded = problem.value()->table(h200, all_candidates(), most, {});
    ASSERT_TRUE(bounded.ok()) << bounded.status().message;
    EXPECT_EQ(bounded.value()->tokens_max(), most);
    EXPECT_EQ(bounded.value()->steps().back().last, most);
    EXPECT_EQ(bounded.value()->run(most + 1, {}, {}, {}).message,
              "router_route: wanted 0 to " + std::to_string(most) + " tokens (the plan's bound), found " +
                  std::to_string(most + 1));
  }
}

}  // namespace
}  // namespace sluice::test
