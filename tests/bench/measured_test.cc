// The rows of bench/measured spell each model one way and name Sluice's version by commit.
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "base/json.h"
#include "nn/moe/layer.h"
#include "report/results.h"

namespace sluice::bench {
namespace {

std::vector<Row> measured(const std::string& name, std::string_view suite) {
  const std::string path = std::string(SLUICE_SOURCE_DIR) + "/bench/measured/h200/" + name;
  const auto rows = parse_csv(read_file(path, 1 << 24).value(), name, suite);
  EXPECT_TRUE(rows.ok()) << rows.status().message;
  return rows.ok() ? rows.value() : std::vector<Row>{};
}

TEST(Measured, ModelsAreSpeltAsKnownMoeSpellsThem) {
  const std::regex slice("-(tp|ep)[0-9]+$");
  std::set<std::string> unknown;
  for (const char* suite : {"mxfp4", "bf16"})
    for (const Row& row : measured(std::string(suite) + ".csv", suite))
      if (row.op != "read" && row.op != "dense_8192" &&
          !known_moe(std::regex_replace(row.model, slice, "")).ok())
        unknown.insert(row.model);
  EXPECT_EQ(unknown, std::set<std::string>{}) << "known are " << known_moe_names();
}

TEST(Measured, VersionsOfSluiceAreCommits) {
  const std::regex commit("[0-9a-f]{7,40}(-dirty)?|unknown");
  std::set<std::string> wrong;
  for (const auto& [name, suite] : {std::pair{"router.csv", "router"},
                                    {"router_candidates.csv", "router"},
                                    {"routing.csv", "routing"},
                                    {"routing_candidates.csv", "routing"},
                                    {"mxfp4.csv", "mxfp4"},
                                    {"bf16.csv", "bf16"},
                                    {"linear.csv", "linear"},
                                    {"linear_candidates.csv", "linear"},
                                    {"attention.csv", "attention"},
                                    {"sample.csv", "sample"},
                                    {"engine.csv", "engine"}})
    for (const Row& row : measured(name, suite))
      if ((row.impl.starts_with("sluice") || row.impl.starts_with("cuda.")) &&
          !std::regex_match(row.version, commit))
        wrong.insert(std::string(name) + ": " + row.version);
  EXPECT_EQ(wrong, std::set<std::string>{});
}

}  // namespace
}  // namespace sluice::bench
