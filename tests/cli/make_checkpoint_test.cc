// `sluice make-checkpoint`: its files, and the options that it rejects.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/command.h"
#include "harness/model_copy.h"
#include "models/family.h"
#include "nn/moe/layer.h"
#include "weights/checkpoint.h"

namespace sluice::test {
namespace {

TEST(MakeCheckpointCommand, RunsInBenchAndRefusesToOverwrite) {
  const fs::path path = fs::path(testing::TempDir()) / ("sluice_made_" + std::to_string(getpid()));
  fs::remove_all(path);
  expect_refusal({"make-checkpoint", path.string(), "--like", "gpt-os-20b"}, {"gpt-os-20b", "gpt-oss-20b"});
  EXPECT_FALSE(fs::exists(path));
  fs::create_directories(path);
  std::ofstream(path / "mine") << "x";
  expect_refusal({"make-checkpoint", path.string()}, {"wanted a new or empty directory"});
  EXPECT_EQ(text_of(path / "mine"), "x");
  fs::remove_all(path);
}

TEST(MakeCheckpointCommand, WritesOnlyTheConfig) {
  const fs::path path = fs::path(testing::TempDir()) / ("sluice_config_" + std::to_string(getpid()));
  fs::remove_all(path);
  const Outcome o = sluice({"make-checkpoint", path.string(), "--like", "gpt-oss-120b", "--config-only"});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_NE(o.out.find("configs and a tokenizer for --load-format dummy of gpt-oss-120b"), std::string::npos)
      << o.out;
  EXPECT_FALSE(fs::exists(path / "model.safetensors"));
  const Json config = parse_json(text_of(path / "config.json"), "config").value();
  EXPECT_EQ(config["num_hidden_layers"], 36);
  EXPECT_EQ(config["num_local_experts"], 128);
  fs::remove_all(path);
  expect_refusal({"make-checkpoint", path.string(), "--like", "glm-4.5", "--config-only"},
                 {"--config-only: wanted a model that Sluice runs (gpt-oss-20b, gpt-oss-120b, "
                  "deepseek-v3, moonlight-16b-a3b, kimi-k2, qwen3-30b-a3b, qwen3-235b-a22b)",
                  "found --like glm-4.5"});
  EXPECT_FALSE(fs::exists(path));
}

// The written config equals the published model's.
TEST(MakeCheckpointCommand, WritesThePublishedConfigs) {
  const fs::path path =
      fs::path(testing::TempDir()) / ("sluice_published_config_" + std::to_string(getpid()));
  const struct {
    std::string name;
    std::vector<int32_t> stop_tokens;
    int64_t top_k;
  } kModels[] = {{"qwen3-30b-a3b", {151645, 151643}, 20},
                 {"qwen3-235b-a22b", {151645, 151643}, 20},
                 {"deepseek-v3", {1}, 0},
                 {"moonlight-16b-a3b", {163585}, 0}};
  for (const auto& [name, stop_tokens, top_k] : kModels) {
    fs::remove_all(path);
    const Outcome o = sluice({"make-checkpoint", path.string(), "--like", name, "--config-only"});
    EXPECT_EQ(o.status, 0) << o.err;
    const Json made = parse_json(text_of(path / "config.json"), "config").value();
    const Json published =
        parse_json(text_of(fs::path(SLUICE_SOURCE_DIR) / "tests" / "data" / name / "config.json"), "config")
            .value();
    for (const auto& [key, value] : made.items()) EXPECT_EQ(published.value(key, Json()), value) << key;
    const auto read = read_model_config(path.string());
    ASSERT_TRUE(read.ok()) << read.status().message;
    EXPECT_EQ(read.value().stop_tokens, stop_tokens);
    EXPECT_EQ(read.value().generation.top_k, top_k);
  }
  fs::remove_all(path);
}

// For other engines, the Zipf biases can be written as a supplement to a uniform checkpoint of the same seed.
TEST(MakeCheckpointCommand, WritesOnlySomeTensors) {
  const fs::path path = fs::path(testing::TempDir()) / ("sluice_only_" + std::to_string(getpid()));
  fs::remove_all(path);
  const Outcome o = sluice({"make-checkpoint", path.string(), "--like", "gpt-oss-120b", "--routing", "zipf",
                            "--only", "mlp.router.bias"});
  EXPECT_EQ(o.status, 0) << o.err;
  const auto written = Checkpoint::open(path.string());
  ASSERT_TRUE(written.ok()) << written.status().message;
  EXPECT_EQ(written.value()->tensors().size(), 36u);
  EXPECT_EQ(written.value()->bytes(), 36 * 128 * 2);
  fs::remove_all(path);
  expect_refusal({"make-checkpoint", path.string(), "--only", "nobody"},
                 {"--only: wanted a part of a tensor's name"});
  expect_refusal({"make-checkpoint", path.string(), "--config-only", "--only", "gate"},
                 {"--only: cannot be combined with --config-only"});
  expect_refusal({"make-checkpoint", path.string(), "--config-only", "--seed", "5"},
                 {"--seed: wanted 0 with --config-only", "found 5"});
  expect_refusal({"make-checkpoint", path.string(), "--config-only", "--routing", "zipf"},
                 {"--routing: cannot be combined with --config-only"});
  expect_refusal({"make-checkpoint", path.string(), "--like", "kimi-k2", "--routing", "zipf"},
                 {"--routing zipf: wanted a model whose routers have biases", "found --like kimi-k2"});
  expect_refusal({"make-checkpoint", path.string(), "--like", "qwen3-30b-a3b", "--routing", "zipf"},
                 {"--routing zipf: wanted a model whose routers have biases (gpt-oss-20b, gpt-oss-120b)"});
  EXPECT_FALSE(fs::exists(path));
}

TEST(MakeCheckpointCommand, WritesExpertsInAFormat) {
  const fs::path path = fs::path(testing::TempDir()) / ("sluice_formats_" + std::to_string(getpid()));
  const auto types_of = [&](const std::string& like, const std::string& form, const std::string& only) {
    fs::remove_all(path);
    const Outcome o = sluice({"make-checkpoint", path.string(), "--like", like, "--layers", "1",
                              "--quantization", form, "--only", only});
    EXPECT_EQ(o.status, 0) << o.err;
    std::string out;
    const auto written = Checkpoint::open(path.string());
    if (!written.ok()) return written.status().message;
    for (const CheckpointTensor& t : written.value()->tensors())
      out += t.name.substr(t.name.find("down_proj")) + " " + stored_text(t.type, t.shape) + "\n";
    return out;
  };
  const std::string expert = "experts.7.down_proj";
  EXPECT_EQ(types_of("qwen3-30b-a3b", "fp8-blocks", expert),
            "down_proj.weight F8_E4M3[2048, 768]\ndown_proj.weight_scale_inv F32[16, 6]\n");
  EXPECT_EQ(types_of("qwen3-30b-a3b", "fp8-rows", expert),
            "down_proj.weight F8_E4M3[2048, 768]\ndown_proj.weight_scale F32[2048, 1]\n");
  EXPECT_EQ(types_of("qwen3-30b-a3b", "mxfp8", expert),
            "down_proj.weight F8_E4M3[2048, 768]\ndown_proj.weight_scale_inv U8[2048, 24]\n");
  EXPECT_EQ(types_of("glm-4.5-air", "mxfp4", expert),
            "down_proj.weight U8[4096, 704]\ndown_proj.weight_scale U8[4096, 44]\n");
  EXPECT_EQ(types_of("qwen3-30b-a3b", "nvfp4", expert),
            "down_proj.weight U8[2048, 384]\ndown_proj.weight_scale F8_E4M3[2048, 48]\n"
            "down_proj.weight_scale_2 F32[]\n");
  const auto read = read_model_config(path.string());
  ASSERT_TRUE(read.ok()) << read.status().message;
  EXPECT_EQ(read.value().decoder.moe().expert_scales, WeightScales::kNv);
  fs::remove_all(path);
  expect_refusal({"make-checkpoint", path.string(), "--like", "gpt-oss-20b", "--quantization", "nvfp4"},
                 {"--quantization: wanted a model in bf16 with a tensor for each expert"});
  expect_refusal({"make-checkpoint", path.string(), "--like", "qwen3-30b-a3b", "--quantization", "nvfp"},
                 {"nvfp4"});
  EXPECT_FALSE(fs::exists(path));
}

// Every known layer except DeepSeek V4's -hash layers, which belong to the model named without the suffix, parts of layers, and Step's
// layers, whose checkpoints stack the experts of gate and up apart.
TEST(MakeCheckpointCommand, KnowsEveryKnownLayer) {
  std::istringstream names(known_moe_names());
  int known = 0;
  for (std::string name; names >> name;) {
    if (name.ends_with(',')) name.pop_back();
    if (name.ends_with("-hash") || name.ends_with("-routed") || name.starts_with("step-")) continue;
    ++known;
    expect_refusal({"make-checkpoint", "/dev/null/x", "--like", name}, {"/dev/null/x: cannot be created"});
  }
  EXPECT_GE(known, 25);
}

}  // namespace
}  // namespace sluice::test
