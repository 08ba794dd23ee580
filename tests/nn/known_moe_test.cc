// Layers known by name, compared with their models' published sizes and with the table in docs/known-layers.md.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "backends/cuda/device.h"
#include "dispatch/explain.h"
#include "nn/moe/layer.h"

namespace sluice::test {
namespace {

std::vector<std::string> names() {
  std::vector<std::string> out;
  std::istringstream in(known_moe_names());
  for (std::string name; std::getline(in >> std::ws, name, ',');) out.push_back(name);
  return out;
}

// The number of weights of a layer: all experts, the shared expert and projections.
double parameters(const MoeConfig& c) {
  const int64_t matrices = is_gated(c.act) ? 3 : 2, width = c.latent > 0 ? c.latent : c.hidden;
  return static_cast<double>(matrices *
                                 (width * c.experts * c.intermediate + c.hidden * c.shared_intermediate) +
                             2 * c.hidden * c.latent);
}

// A model's row in the table in docs/known-layers.md.
std::string row_of(const std::string& name, const MoeConfig& c) {
  std::ostringstream out;
  out << "| `" << name << "` | " << c.hidden << (c.latent > 0 ? " (" + std::to_string(c.latent) + ")" : "")
      << " | " << c.intermediate << " | " << c.experts << " | " << c.top_k << " | " << c.shared_intermediate
      << " | " << (c.input == RoutingInput::kLogits ? word(c.method) : word(c.input)) << " | " << c.scale
      << " | " << word(c.act) << " | " << (c.expert_w == DType::kE2M1 ? "MXFP4" : "bf16") << " |";
  return out.str();
}

}  // namespace

// MoE layers, and total parameters in billions according to the model card. Most parameters are in experts.
TEST(KnownMoe, LayersAddUpToTheirModels) {
  const struct {
    const char* name;
    double layers, billions;
  } kPublished[] = {{"gpt-oss-20b", 24, 20.9},
                    {"gpt-oss-120b", 36, 116.8},
                    {"deepseek-v4-flash", 43, 284},
                    {"deepseek-v4-pro", 61, 1600},
                    {"deepseek-v3", 58, 671},
                    {"kimi-k2", 60, 1026},
                    {"moonlight-16b-a3b", 26, 16},
                    {"glm-4.5", 89, 355},
                    {"glm-4.5-air", 45, 106},
                    {"qwen3-30b-a3b", 48, 30.5},
                    {"qwen3-235b-a22b", 94, 235},
                    {"nemotron-3-nano", 23, 31.6},
                    {"nemotron-3-super", 40, 120},
                    {"minimax-m2", 62, 230},
                    {"minimax-m3", 57, 428},
                    {"mistral-large-3", 58, 675},
                    {"llama-4-scout", 48, 109},
                    {"llama-4-maverick", 24, 400.7},
                    {"glm-5", 75, 744},
                    {"glm-5.2", 75, 744},
                    {"glm-5.3-flash", 42, 320},
                    {"nemotron-3-ultra", 48, 550},
                    {"mistral-small-4", 36, 119},
                    {"mistral-large-4", 71, 1050},
                    {"step-3.7-flash", 42, 196},
                    {"inkling-routed", 64, 975},
                    {"nemotron-3.5-lightning", 23, 31.6},
                    {"qwen3.5-35b-a3b-routed", 40, 35},
                    {"qwen3.5-397b-a17b-routed", 60, 397}};
  for (const auto& p : kPublished) {
    const double share = p.layers * parameters(known_moe(p.name).value()) * 1e-9 / p.billions;
    EXPECT_LE(share, 1) << p.name;
    EXPECT_GE(share, 0.9) << p.name;
  }
}

// Hash layers choose experts by another rule and are otherwise equal.
TEST(KnownMoe, HashLayersDifferOnlyInTheirChoice) {
  for (const std::string name : {"deepseek-v4-flash", "deepseek-v4-pro"}) {
    const MoeConfig by_score = known_moe(name).value(), by_hash = known_moe(name + "-hash").value();
    EXPECT_EQ(by_hash.method, RoutingMethod::kHash) << name;
    EXPECT_EQ(by_hash.hash_vocab, 129280) << name;
    EXPECT_FALSE(by_hash.correction_bias) << name;
    EXPECT_EQ(by_hash.scale, by_score.scale) << name;
    EXPECT_EQ(by_hash.limit, by_score.limit) << name;
    EXPECT_EQ(parameters(by_hash), parameters(by_score)) << name;
  }
}

// Without a GPU; the kernels must exist, not only be planned.
TEST(KnownMoe, AnH200HasKernelsForEveryStage) {
  const DeviceInfo h200 = known_device("h200").value();
  const Catalog& catalog = cuda::catalog();
  for (const std::string& name : names()) {
    MoeConfig config = known_moe(name).value();
    config.layout = layout_for(Backend::kCuda);
    const auto step = plan_moe(h200, catalog, config, 3000);
    ASSERT_TRUE(step.ok()) << name << ": " << step.status().message;
    for (const int64_t tokens : {1, 64, 3000}) {
      for (const PieceProblem& s : step.value().problems(tokens)) {
        const Decision d = s.problem->decide(h200, catalog, {});
        ASSERT_GE(d.chosen, 0) << name << ", " << s.stage << ": " << s.problem->text();
        EXPECT_FALSE(d.choice().planned) << name << ", " << s.stage;
      }
    }
  }
}

TEST(KnownMoe, TheDocsTableAgreesWithTheLayers) {
  std::ifstream file(std::string(SLUICE_SOURCE_DIR) + "/docs/known-layers.md");
  std::set<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.insert(line);
  for (const std::string& name : names()) {
    const std::string row = row_of(name, known_moe(name).value());
    EXPECT_TRUE(lines.count(row)) << "docs/known-layers.md lacks this row:\n" << row;
  }
}

}  // namespace sluice::test
