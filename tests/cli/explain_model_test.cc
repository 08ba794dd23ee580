// explain --model: each stage's share of its roofline on the device.
#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "harness/process.h"

namespace sluice::test {
namespace {

const std::string kModel = std::string(SLUICE_SOURCE_DIR) + "/tests/data/gpt-oss-20b";
constexpr double kBytesPerUs = 4.60e6, kFlopsPerUs = 703e6;  // of the h200 (src/dispatch/known_devices.cc)

std::string explain(const std::string& model, const std::string& tokens, const std::string& device,
                    const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {SLUICE_COMMAND, "explain", "--model",  model,
                                    "--tokens",     tokens,    "--device", device};
  words.insert(words.end(), more.begin(), more.end());
  const Outcome o = run_process(words);
  EXPECT_EQ(o.status, 0) << o.err << o.out;
  return o.out;
}

Json choices(const std::string& model, const std::string& tokens, const std::string& device) {
  auto json = parse_json(explain(model, tokens, device, {"--json"}), "explain");
  EXPECT_TRUE(json.ok());
  return json.ok() ? std::move(json).value() : Json();
}

Json stage(const Json& choices, const std::string& name) {
  for (const Json& s : choices["stages"])
    if (s["stage"] == name) return s;
  ADD_FAILURE() << "no stage " << name;
  return {};
}

void expect_floor(const Json& stage, double us) {
  EXPECT_NEAR(stage["floor_us"].get<double>(), us, 1e-9 * us) << stage["stage"];
  EXPECT_NEAR(stage["share_of_floor"].get<double>(), us / stage["cost_us"].get<double>(), 1e-9)
      << stage["stage"];
}

TEST(ExplainModel, AStageThatMovesBytesHasThatFloor) {
  const Json at = choices("gpt-oss-120b", "64", "h200");
  // The experts that 64 * 4 rows are expected to reach, 4.25 bits per weight, rows of bf16 in and out.
  const double experts = 128 * (1 - std::pow(127.0 / 128, 256)), rows = 64 * 4;
  expect_floor(stage(at, "experts.up+experts.down"),
               (experts * (5760 + 2880) * 2880 * 4.25 / 8 + rows * 2 * (2880 + 2880)) / kBytesPerUs);
  expect_floor(stage(at, "router"), (64 * 2880 * 2 + 128 * 2881 * 2 + 64 * 128 * 2) / kBytesPerUs);
}

TEST(ExplainModel, AStageThatMultipliesHasThatFloor) {
  expect_floor(stage(choices("gpt-oss-120b", "4096", "h200"), "experts.up"),
               2.0 * 4096 * 4 * 5760 * 2880 / kFlopsPerUs);
}

TEST(ExplainModel, AStepHasTheFloorsOfItsStages) {
  const Json at = choices(kModel, "64", "h200");
  double floor_us = 0, us = 0;
  for (const Json& s : at["stages"]) {
    const auto times = s["times"].get<double>();
    floor_us += times * s["floor_us"].get<double>(), us += times * s["cost_us"].get<double>();
  }
  EXPECT_NEAR(at["total_floor_us"].get<double>(), floor_us, 1e-9 * floor_us);
  EXPECT_NEAR(at["share_of_floor"].get<double>(), floor_us / us, 1e-9);
  // The roofline of `sluice bench`: weights, the keys and values of 64 sequences of 4096 tokens, and no traffic between stages.
  const double attention = 2880.0 * (64 + 2 * 8) * 64 + 64 * 64 * 2880.0,
               experts = 32 * (1 - std::pow(0.875, 64));
  const double weights =
      24 * (2 * (attention + 2880 * 32) + experts * 3 * 2880 * 2880 * 4.25 / 8) + 2 * 201088.0 * 2880;
  const double cache = 12.0 * 64 * (128 + 4096) * 2 * 8 * 64 * 2.0;
  const double bench_us = (weights + cache) / kBytesPerUs;
  EXPECT_GT(floor_us, bench_us);
  EXPECT_LT(floor_us, 1.03 * bench_us);
}

TEST(ExplainModel, TheTableHasTheShares) {
  const std::string table = explain("gpt-oss-120b", "4096", "h200");
  EXPECT_NE(table.find("        us  of the floor  kernel\n"), std::string::npos) << table;
  const Json at = choices("gpt-oss-120b", "4096", "h200");
  for (const Json& share : {stage(at, "experts.up")["share_of_floor"], at["share_of_floor"]}) {
    char text[32];
    std::snprintf(text, sizeof text, "  %12.2f  ", share.get<double>());
    EXPECT_NE(table.find(text), std::string::npos) << text << "\nin " << table;
  }
}

TEST(ExplainModel, ACpuHasNoFloor) {
  EXPECT_EQ(explain("gpt-oss-120b", "64", "cpu-amx").find("floor"), std::string::npos);
  EXPECT_EQ(explain("gpt-oss-120b", "64", "cpu-amx", {"--json"}).find("floor"), std::string::npos);
}

}  // namespace
}  // namespace sluice::test
