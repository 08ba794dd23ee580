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

// [problem][kernel] = microseconds, plain launches.
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

TEST(Regret, RouterGemmsAreTheFastestThatWereMeasured) {
  const DeviceInfo h200 = known_device("h200").value();
  const Times times = measured("router", "router_gemm");
  EXPECT_GT(times.size(), 8u * 18u - 1u);  // the shapes and tokens
  for (const auto& [what, of_kernel] : times) {
    RouterGemm::Problem p{.tokens = what.second};
    ASSERT_EQ(std::sscanf(what.first.c_str(), "%ldx%ld", &p.hidden, &p.experts), 2);
    p.y = what.first.find("bf16") == std::string::npos ? DType::kF32 : DType::kBF16;
    p.bias = what.first.find("bias") != std::string::npos;
    const auto decision = decide<RouterGemm>(p, h200, cuda::catalog().table<RouterGemm>(), {});
    ASSERT_GE(decision.chosen, 0) << what.first;
    const std::string chosen(decision.verdicts[static_cast<size_t>(decision.chosen)].candidate);
    ASSERT_EQ(of_kernel.count(chosen), 1u)
        << chosen << " was not measured at " << what.first << ", " << what.second << " tokens";
    double least = of_kernel.at(chosen);
    for (const auto& [kernel, us] : of_kernel) least = std::min(least, us);
    EXPECT_LE(of_kernel.at(chosen), kRegret * least)
        << chosen << " at " << what.first << ", " << what.second << " tokens";
  }
}

}  // namespace
}  // namespace sluice::test
