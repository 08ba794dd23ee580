// explain --model: each stage's share of its roofline on the device.
#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "harness/process.h"

namespace sluice::test {
namespace {

const std::string kModel = std::string(SLUICE_SOURCE_DIR) + "/tests/data/gpt-oss-20b";
// Rates of the h200 (src/dispatch/known_devices.cc).
constexpr double kBytesPerUs = 4.60e6, kFlopsPerUs = 703e6;

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

TEST(ExplainModel, AMemoryBoundStageHasTheFloorOfItsBytes) {
  const Json at = choices("gpt-oss-120b", "64", "h200");
  // The weights of the experts that 64 * 4 rows are expected to reach, at 4.25 bits per weight, and bf16 rows
  // in and out.
  const double experts = 128 * (1 - std::pow(127.0 / 128, 256)), rows = 64 * 4;
  expect_floor(stage(at, "experts.up+experts.down"),
               (experts * (5760 + 2880) * 2880 * 4.25 / 8 + rows * 2 * (2880 + 2880)) / kBytesPerUs);
  expect_floor(stage(at, "router"), (64 * 2880 * 2 + 128 * 2881 * 2 + 64 * 128 * 2) / kBytesPerUs);
}

TEST(ExplainModel, AComputeBoundStageHasTheFloorOfItsFlops) {
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
  // The roofline that `sluice bench` prints: weights, and keys and values of 64 sequences of 4096 tokens,
  // without traffic between stages.
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

// Above its counts another kernel computes the stages of a forced fused kernel, and explain says so.
TEST(ExplainModel, AForcedKernelThatDoesNotRunIsNamed) {
  const std::string kernel = "cuda.norm_router_route.fewtokens_sm90", line = "forced, but does not run at ";
  const std::string few = explain(kModel, "8", "h200", {"--force", kernel});
  EXPECT_NE(few.find("  " + kernel), std::string::npos) << few;
  EXPECT_EQ(few.find(line), std::string::npos) << few;
  const std::string many = explain(kModel, "1024", "h200", {"--force", kernel});
  EXPECT_EQ(many.find("  " + kernel), std::string::npos) << many;
  EXPECT_NE(many.find(line + "1024 tokens: " + kernel + ": "), std::string::npos) << many;
  EXPECT_NE(many.find("tokens=1024"), std::string::npos) << many;
  const auto json = parse_json(explain(kModel, "1024", "h200", {"--force", kernel, "--json"}), "explain");
  ASSERT_TRUE(json.ok());
  ASSERT_EQ(json.value()["forced_not_run"].size(), 1u);
  EXPECT_TRUE(json.value()["forced_not_run"][0].get<std::string>().starts_with(kernel + ": "));
}

Json drafts(const std::string& model, const std::string& config, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"--json", "--speculative-config", config};
  words.insert(words.end(), more.begin(), more.end());
  auto json = parse_json(explain(model, "1", "h200", words), "explain");
  EXPECT_TRUE(json.ok());
  return json.ok() ? std::move(json).value() : Json();
}

// Every cell holds the expected tokens for its number of drafts, and higher acceptance never yields fewer
// tokens.
void expect_choices(const Json& at, int64_t most) {
  EXPECT_EQ(at["num_speculative_tokens"], most);
  ASSERT_EQ(at["choices"].size(), 25u);
  for (size_t i = 0; i < 25; ++i) {
    const Json& c = at["choices"][i];
    const auto k = c["drafts"].get<int64_t>();
    const double a = c["acceptance"].get<double>(), sequences = c["sequences"].get<double>();
    ASSERT_GE(k, 0);
    ASSERT_LE(k, most);
    const double tokens = sequences * (1 - std::pow(a, static_cast<double>(k) + 1)) / (1 - a);
    EXPECT_NEAR(c["tokens"].get<double>(), tokens, 1e-9 * tokens) << c;
    const double rate = tokens / c["cost_us"].get<double>(), plain = sequences / c["plain_us"].get<double>();
    EXPECT_NEAR(c["speedup"].get<double>(), rate / plain, 1e-9) << c;
    EXPECT_GE(rate, plain * (1 - 1e-9)) << c;
    EXPECT_TRUE(k > 0 || c["cost_us"] == c["plain_us"]) << c;
    if (i % 5 == 0) continue;
    EXPECT_GE(c["speedup"], at["choices"][i - 1]["speedup"]) << c;
    EXPECT_GE(k, at["choices"][i - 1]["drafts"].get<int64_t>()) << c;
  }
}

TEST(ExplainModel, HowManyFreeDraftsPay) {
  const Json at = drafts(kModel, R"({"method": "ngram", "num_speculative_tokens": 5})");
  expect_choices(at, 5);
  EXPECT_EQ(at["method"], "ngram");
  EXPECT_GT(at["choices"][4]["drafts"], 2) << "one sequence, 90% of the drafts accepted";
  EXPECT_GT(at["choices"][4]["drafts"], at["choices"][20]["drafts"])
      << "128 sequences, half of the drafts accepted";
  const std::string table = explain(kModel, "1", "h200", {"--speculative-config", R"({"method": "suffix"})"});
  EXPECT_NE(table.find("drafts   suffix, at most 24 of each sequence\n"), std::string::npos) << table;
  EXPECT_NE(table.find("\nsequences           0.5           0.6"), std::string::npos) << table;
}

TEST(ExplainModel, DraftsOfALayerCostItsPasses) {
  const std::string deepseek = std::string(SLUICE_SOURCE_DIR) + "/tests/data/deepseek-v3";
  const Json layer = drafts(deepseek, R"({"method": "mtp", "num_speculative_tokens": 4})");
  const Json free = drafts(deepseek, R"({"method": "ngram", "num_speculative_tokens": 4})");
  expect_choices(layer, 4);
  for (size_t i = 0; i < 25; ++i)
    EXPECT_LT(layer["choices"][i]["tokens"].get<double>() / layer["choices"][i]["cost_us"].get<double>(),
              free["choices"][i]["tokens"].get<double>() / free["choices"][i]["cost_us"].get<double>());
}

TEST(ExplainModel, DraftsOfAHeadCostItsPasses) {
  const std::string models = std::string(SLUICE_SOURCE_DIR) + "/models/";
  expect_choices(drafts(models + "sluice-16e-tiny",
                        R"({"method": "eagle3", "model": ")" + models + R"(sluice-16e-tiny-eagle3"})"),
                 3);
}

TEST(ExplainModel, DraftsThatCannotBeExplained) {
  const auto error = [](const std::vector<std::string>& words) {
    std::vector<std::string> all = {SLUICE_COMMAND, "explain", "--device", "h200"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome o = run_process(all);
    EXPECT_EQ(o.status, 2) << o.out;
    return o.err;
  };
  const std::string ngram = R"({"method": "ngram"})";
  EXPECT_NE(error({"--speculative-config", ngram}).find("needs --model"), std::string::npos);
  EXPECT_NE(error({"--moe-decode-tokens", "4"}).find("--moe-decode-tokens: needs --model"),
            std::string::npos);
  EXPECT_NE(error({"--model", kModel, "--speculative-config", ngram, "--sweep", "tokens"})
                .find("cannot be combined with --sweep"),
            std::string::npos);
  EXPECT_NE(error({"--model", kModel, "--speculative-config", R"({"method": "medusa"})"}).find("medusa"),
            std::string::npos);
  EXPECT_NE(error({"--model", kModel, "--speculative-config", R"({"method": "eagle3"})"})
                .find("model: wanted the directory of a draft head, found none"),
            std::string::npos);
  EXPECT_NE(error({"--model", kModel, "--speculative-config", R"({"method": "mtp"})"}), "");
  EXPECT_NE(error({"--model", "gpt-oss-20b", "--speculative-config",
                   R"({"method": "ngram", "num_speculative_tokens": 3})"})
                .find("--speculative-config: wanted --model with a directory, found only the MoE layer "
                      "'gpt-oss-20b', which generates no tokens"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice::test
