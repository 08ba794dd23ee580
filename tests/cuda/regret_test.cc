// The choice of kernels against what kernels took: bench/measured/h200/*_candidates.csv hold each candidate's time on the
// card, so whether dispatch takes the fastest is known without one.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "backends/cuda/device.h"
#include "dispatch/decide.h"
#include "dispatch/explain.h"
#include "report/results.h"

namespace sluice::test {
namespace {

constexpr double kRegret = 1.05;

// [problem, note and tokens][kernel] = microseconds.
using Times = std::map<std::pair<std::string, int64_t>, std::map<std::string, double>>;
Times measured(const std::string& suite, std::string_view op) {
  const std::string name = suite + "_candidates.csv";
  std::ifstream file(std::string(SLUICE_SOURCE_DIR) + "/bench/measured/h200/" + name);
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

// decide() for `problem` takes a kernel that took at most kRegret times the least of `of_kernel`.
template <class Op>
void expect_fast(const typename Op::Problem& problem, const std::map<std::string, double>& of_kernel,
                 const std::string& where) {
  const auto decision = decide<Op>(problem, known_device("h200").value(), cuda::catalog().table<Op>(), {});
  ASSERT_GE(decision.chosen, 0) << where;
  const std::string chosen(decision.verdicts[static_cast<size_t>(decision.chosen)].candidate);
  ASSERT_EQ(of_kernel.count(chosen), 1u) << chosen << " was not measured at " << where;
  double least = of_kernel.at(chosen);
  for (const auto& [kernel, us] : of_kernel) least = std::min(least, us);
  EXPECT_LE(of_kernel.at(chosen), kRegret * least) << chosen << " at " << where;
}

TEST(Regret, RouterGemmsAreTheFastestThatWereMeasured) {
  const Times times = measured("router", "router_gemm");
  EXPECT_GT(times.size(), 8u * 18u - 1u);  // the shapes and tokens of the suite
  for (const auto& [what, of_kernel] : times) {
    RouterGemm::Problem p{.tokens = what.second};
    ASSERT_EQ(std::sscanf(what.first.c_str(), "%ldx%ld", &p.hidden, &p.experts), 2);
    p.y = what.first.find("bf16") == std::string::npos ? DType::kF32 : DType::kBF16;
    p.bias = what.first.find("bias") != std::string::npos;
    expect_fast<RouterGemm>(p, of_kernel, what.first + ", " + std::to_string(what.second) + " tokens");
  }
}

TEST(Regret, RoutingIsTheFastestThatWasMeasured) {
  const Times times = measured("routing", "route_group");
  EXPECT_EQ(times.size(), 2u * 4u * 18u);  // plain and dependent
  for (const auto& [what, of_kernel] : times) {
    RouteGroup::Problem p;
    p.tile_rows = 64;
    p.route.tokens = what.second;
    ASSERT_EQ(std::sscanf(what.first.c_str(), "%ldx%ld", &p.route.experts, &p.route.top_k), 2);
    if (what.first.find("deepseek_v3") != std::string::npos) {
      p.route.method = RoutingMethod::kDeepSeekV3;
      p.route.bias = true;
      p.route.groups = 8;
      p.route.topk_groups = 4;
      p.route.scale = 2.5;
    } else if (what.first.find("sqrt_softplus") != std::string::npos) {
      p.route.method = RoutingMethod::kSqrtSoftplus;
      p.route.bias = true;
      p.route.scale = 1.5;
    } else {
      p.route.method = RoutingMethod::kRenormalize;
    }
    expect_fast<RouteGroup>(p, of_kernel, what.first + ", " + std::to_string(what.second) + " tokens");
  }
}

}  // namespace
}  // namespace sluice::test
