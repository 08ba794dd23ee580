// Models whose experts are in FP8, MXFP8, MXFP4 or NVFP4: config.json, and runs from files in their published forms.
#include "models/quantization.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

#include "backends/cpu/device.h"
#include "engine/engine.h"
#include "harness/test_data.h"
#include "models/draft.h"
#include "models/load.h"
#include "models/random_weights.h"
#include "nn/stored_formats.h"

namespace sluice::test {
namespace {

constexpr WeightFormat kFp8Blocks{DType::kE4M3, WeightScales::kBlocks};
constexpr WeightFormat kFp8Rows{DType::kE4M3, WeightScales::kRows};
constexpr WeightFormat kMxfp8{DType::kE4M3, WeightScales::kMx};
constexpr WeightFormat kMxfp4{DType::kE2M1, WeightScales::kMx};
constexpr WeightFormat kNvfp4{DType::kE2M1, WeightScales::kNv};

Result<WeightFormat> read(const std::string& json) {
  Json config = {{"hidden_size", 64}};
  if (!json.empty()) config["quantization_config"] = Json::parse(json);
  const TemporaryDirectory empty;
  return read_quantization(JsonAt(config, "config.json"), empty.path());
}
std::string compressed(const std::string& format, const std::string& weights) {
  return R"({"quant_method": "compressed-tensors", "format": ")" + format +
         R"(", "ignore": ["re:.*gate$"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": )" +
         weights + "}}}";
}

const std::string kFp8Config = R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                   "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]})";
const std::string kChannelConfig = compressed(
    "float-quantized", R"({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true})");
const std::string kModelOptConfig =
    R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*self_attn*"]})";
const std::string kPackedConfig =
    compressed("nvfp4-pack-quantized",
               R"({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16})");

// A small model in two directories: in one its experts have the given format, in the other all weights are bf16.
struct TwoModels {
  TemporaryDirectory quantized, plain;

  enum class Attention : uint8_t { kBf16, kStored };
  TwoModels(Json config, const std::string& quantization, const StoredWay& way, MoeNaming naming,
            Attention attention = Attention::kBf16, int64_t bf16_layer = -1) {
    std::ofstream(plain.file("config.json")) << config.dump();
    config["quantization_config"] = Json::parse(quantization);
    std::ofstream(quantized.file("config.json")) << config.dump();
    const ModelConfig model = read_model_config(plain.path()).value();
    const std::vector<TensorSpec> specs = hugging_face_tensors(model, naming);
    RandomWeights weights(specs, {.seed = 3}, 1);
    const Checkpoint& made = *weights.make(specs).value();
    Random random(5);
    std::vector<StoredTensor> stored, in_bf16;
    for (const TensorSpec& spec : specs) {
      const CheckpointTensor& t = *made.find(spec.name).value();
      in_bf16.push_back({{t.name, t.type, t.shape}, {t.data, t.data + t.bytes}});
      const bool expert = spec.weight.starts_with("experts.") || spec.weight.starts_with("shared.");
      const bool projection = spec.name.ends_with("_proj.weight") && attention == Attention::kStored;
      if ((expert || projection) && spec.layer != bf16_layer) {
        const RandomMatrix m = store_matrix(way, spec.name, spec.shape[0], spec.shape[1], 0, random, &stored);
        std::memcpy(in_bf16.back().bytes.data(), m.w.data(), m.w.size());
      } else {
        stored.push_back(in_bf16.back());
      }
    }
    write_tensors(quantized.file("model.safetensors"), stored);
    write_tensors(plain.file("model.safetensors"), in_bf16);
  }
};

Json qwen3() {
  Json config = read_json(test_data("qwen3_moe/renormalized/config.json"), 1 << 20).value();
  config["hidden_size"] = 96, config["moe_intermediate_size"] = 160;
  return config;
}
Json deepseek_v3() {
  Json config = read_json(test_data("deepseek_v3/fp8/config.json"), 1 << 20).value();
  config.erase("quantization_config"), config["num_nextn_predict_layers"] = 0;
  return config;
}

struct Answers {
  MoeConfig moe;
  LoadNotes notes;
  std::vector<float> logits;
};
Answers run(const std::string& directory) {
  const auto device = cpu::open_device({.threads = 2}).value();
  const auto model = LoadedModel::load(*device, directory, {.x = DType::kF32});
  EXPECT_TRUE(model.ok()) << model.status().message;
  if (!model.ok()) return {};
  const auto engine = Engine::make(*device, model.value()->config().decoder, model.value()->weights(),
                                   {.max_model_len = 32, .max_num_seqs = 1, .max_num_batched_tokens = 16});
  EXPECT_TRUE(engine.ok()) << engine.status().message;
  const auto logits = engine.value()->logits({3, 1, 4, 1, 5, 9, 2, 6}, {0, 3, 7});
  EXPECT_TRUE(logits.ok()) << logits.status().message;
  return {model.value()->config().decoder.moe(), model.value()->notes(), logits.value()};
}

// Both models have the same weights, so in f32 only the order of sums differs.
void expect_same_answers(const TwoModels& models, WeightFormat format) {
  const Answers quantized = run(models.quantized.path()), plain = run(models.plain.path());
  ASSERT_EQ(quantized.logits.size(), plain.logits.size());
  ASSERT_FALSE(plain.logits.empty());
  EXPECT_EQ((WeightFormat{quantized.moe.expert_w, quantized.moe.expert_scales}), format);
  EXPECT_EQ(plain.moe.expert_w, DType::kBF16);
  EXPECT_TRUE(quantized.notes.unused.empty()) << quantized.notes.unused.front();
  double largest = 0, apart = 0;
  for (size_t i = 0; i < plain.logits.size(); ++i) {
    largest = std::max(largest, std::abs(double{plain.logits[i]}));
    apart = std::max(apart, std::abs(double{plain.logits[i]} - quantized.logits[i]));
  }
  EXPECT_GT(largest, 0.1);
  EXPECT_LT(apart, largest * 1e-4);
}

StoredWay way_of(const std::string& name) {
  const auto all = stored_ways();
  return *std::ranges::find(all, name, &StoredWay::name);
}

}  // namespace

TEST(Quantization, ReadsPublishedConfigs) {
  const auto expect = [](const std::string& json, WeightFormat format) {
    const auto found = read(json);
    ASSERT_TRUE(found.ok()) << found.status().message;
    EXPECT_EQ(found.value(), format) << json;
  };
  expect("", {});
  expect(kFp8Config, kFp8Blocks);
  expect(R"({"quant_method": "fp8", "activation_scheme": "static"})", kFp8Rows);
  expect(R"({"quant_method": "mxfp8", "ignored_layers": ["lm_head"]})", kMxfp8);
  expect(kChannelConfig, kFp8Rows);
  expect(compressed("float-quantized", R"({"num_bits": 8, "type": "float", "strategy": "tensor"})"),
         kFp8Rows);
  expect(
      compressed("float-quantized",
                 R"({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]})"),
      kFp8Blocks);
  expect(kPackedConfig, kNvfp4);
  expect(compressed("mxfp4-pack-quantized",
                    R"({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32})"),
         kMxfp4);
  expect(R"({"quant_method": "modelopt", "quant_algo": "FP8"})", kFp8Rows);
  expect(R"({"quant_method": "modelopt", "quant_algo": "MXFP8", "group_size": 32})", kMxfp8);
  expect(kModelOptConfig, kNvfp4);
  expect(R"({"quant_method": "modelopt", "quantization": {"quant_algo": "W4A16_NVFP4", "group_size": 16}})",
         kNvfp4);
  expect(R"({"quant_method": "quark", "global_quant_config":
             {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}}})",
         kMxfp4);
}

TEST(Quantization, ReadsTheFileOfModelOptimizer) {
  const Json config = {{"hidden_size", 64}};
  const TemporaryDirectory at;
  std::ofstream(at.file("hf_quant_config.json"))
      << R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16,
             "exclude_modules": ["lm_head"]}})";
  EXPECT_EQ(read_quantization(JsonAt(config, "config.json"), at.path()).value(), kNvfp4);
  std::ofstream(at.file("hf_quant_config.json")) << R"({"quantization": {"quant_algo": "INT4_AWQ"}})";
  const Status status = read_quantization(JsonAt(config, "config.json"), at.path()).status();
  EXPECT_EQ(status.code, Code::kUnsupported);
  EXPECT_EQ(status.message, at.path() +
                                "/hf_quant_config.json: quantization.quant_algo: wanted FP8, "
                                "FP8_PER_CHANNEL_PER_TOKEN, MXFP8, NVFP4 or W4A16_NVFP4, found \"INT4_AWQ\"");
}

TEST(Quantization, RefusesByKey) {
  const auto expect = [](const std::string& json, const std::string& message) {
    const Status status = read(json).status();
    EXPECT_EQ(status.code, Code::kUnsupported) << json;
    EXPECT_EQ(status.message, "config.json: quantization_config." + message);
  };
  const auto only = [](const std::string& wanted) {
    return "wanted " + wanted + ", the only value that supported quantized models have, found ";
  };
  expect(R"({"quant_method": "awq"})",
         "quant_method: wanted fp8, mxfp8, compressed-tensors, modelopt or quark, found \"awq\"");
  expect(R"({"quant_method": "fp8", "fmt": "e5m2"})", "fmt: " + only("\"e4m3\"") + "\"e5m2\"");
  expect(R"({"quant_method": "fp8", "weight_block_size": [64, 64]})",
         "weight_block_size: " + only("[128,128]") + "an array of 2");
  expect(compressed("pack-quantized", "{}"),
         "format: wanted float-quantized, nvfp4-pack-quantized or mxfp4-pack-quantized, found "
         "\"pack-quantized\"");
  expect(compressed("float-quantized", R"({"num_bits": 8, "type": "int"})"),
         "config_groups.group_0.weights.type: " + only("\"float\"") + "\"int\"");
  expect(compressed("float-quantized", R"({"num_bits": 8, "type": "float", "strategy": "group"})"),
         "config_groups.group_0.weights.strategy: wanted channel, tensor or block, found \"group\"");
  expect(compressed("nvfp4-pack-quantized", R"({"num_bits": 4, "type": "float", "group_size": 32})"),
         "config_groups.group_0.weights.group_size: " + only("16") + "32");
  expect(R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int4"}}})",
         "global_quant_config.weight.dtype: " + only("\"fp4\"") + "\"int4\"");
}

TEST(Quantization, FormatsNeedWholeBlocks) {
  Json config = read_json(test_data("qwen3_moe/renormalized/config.json"), 1 << 20).value();
  config["quantization_config"] = Json::parse(kModelOptConfig);
  const TemporaryDirectory at;
  std::ofstream(at.file("config.json")) << config.dump();
  EXPECT_EQ(
      read_model_config(at.path()).status().message,
      at.path() + "/config.json: moe_intermediate_size: wanted a multiple of 32 (blocks of NVFP4), found 16");
}

TEST(Quantization, QwensExpertsStayInTheirFormat) {
  expect_same_answers({qwen3(), kFp8Config, way_of("FP8 blocks"), MoeNaming::kQwen3Moe}, kFp8Blocks);
  expect_same_answers({qwen3(), kModelOptConfig, way_of("NVFP4 of modelopt"), MoeNaming::kQwen3Moe}, kNvfp4);
  expect_same_answers({qwen3(), kPackedConfig, way_of("NVFP4 of compressed-tensors"), MoeNaming::kQwen3Moe},
                      kNvfp4);
}

// Attention, dense MLPs and the experts have the same form; all but the experts become bf16.
TEST(Quantization, OtherMatricesBecomeBf16) {
  using enum TwoModels::Attention;
  expect_same_answers({qwen3(), kChannelConfig, way_of("FP8 by channel"), MoeNaming::kQwen3Moe, kStored},
                      kFp8Rows);
  expect_same_answers({qwen3(), R"({"quant_method": "modelopt", "quant_algo": "FP8"})",
                       way_of("FP8 by tensor"), MoeNaming::kQwen3Moe, kStored},
                      kFp8Rows);
  expect_same_answers(
      {qwen3(), R"({"quant_method": "mxfp8"})", way_of("MXFP8"), MoeNaming::kQwen3Moe, kStored}, kMxfp8);
  expect_same_answers(
      {qwen3(), kPackedConfig, way_of("NVFP4 of compressed-tensors"), MoeNaming::kQwen3Moe, kStored}, kNvfp4);
}

TEST(Quantization, DeepSeeksSharedExpertHasTheFormatOfTheOthers) {
  using enum TwoModels::Attention;
  const TwoModels models(deepseek_v3(), kFp8Config, way_of("FP8 blocks"), MoeNaming::kDeepSeekV3, kStored);
  expect_same_answers(models, kFp8Blocks);
  const MoeConfig moe = run(models.quantized.path()).moe;
  EXPECT_EQ((WeightFormat{moe.shared_w, moe.shared_scales}), kFp8Blocks);
  EXPECT_TRUE(moe.shared_as_slots);
  expect_same_answers({deepseek_v3(), kModelOptConfig, way_of("NVFP4 of modelopt"), MoeNaming::kDeepSeekV3},
                      kNvfp4);
}

// Model Optimizer's lists of excluded modules may contain such patterns.
TEST(Quantization, ALayersExpertsMayStayInBf16) {
  using enum TwoModels::Attention;
  for (const int64_t layer : {0, 1}) {
    const TwoModels models(qwen3(), kModelOptConfig, way_of("NVFP4 of modelopt"), MoeNaming::kQwen3Moe, kBf16,
                           layer);
    const Answers quantized = run(models.quantized.path()), plain = run(models.plain.path());
    ASSERT_EQ(quantized.logits.size(), plain.logits.size());
    for (size_t i = 0; i < plain.logits.size(); ++i)
      EXPECT_NEAR(quantized.logits[i], plain.logits[i], 1e-3) << i;
  }
}

TEST(Quantization, ConfigAndFilesMustAgree) {
  const TwoModels models(qwen3(), kFp8Config, way_of("FP8 blocks"), MoeNaming::kQwen3Moe);
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto error_with = [&](const std::function<void(Json&)>& change) {
    Json config = read_json(models.quantized.file("config.json"), 1 << 20).value();
    change(config);
    const TemporaryDirectory at;
    std::ofstream(at.file("config.json")) << config.dump();
    std::filesystem::copy_file(models.quantized.file("model.safetensors"), at.file("model.safetensors"));
    return LoadedModel::load(*device, at.path()).status().message;
  };
  EXPECT_NE(error_with([](Json& c) { c.erase("quantization_config"); })
                .find("config.json: quantization_config: wanted one for experts in FP8 in blocks of 128 x "
                      "128, the format of "),
            std::string::npos);
  EXPECT_NE(error_with([](Json& c) {
              c["quantization_config"] = Json::parse(kChannelConfig);
            }).find("found one for FP8 with a scale for each channel or tensor"),
            std::string::npos);
  // Files in bf16 are taken as they are, like layers that the config excludes.
  Json config = read_json(models.quantized.file("config.json"), 1 << 20).value();
  std::ofstream(models.plain.file("config.json")) << config.dump();
  EXPECT_EQ(run(models.plain.path()).moe.expert_w, DType::kBF16);
}

TEST(Quantization, RandomWeightsHaveTheFormatOfTheConfig) {
  for (const auto& [config, format] : {std::pair{kFp8Config, kFp8Blocks},
                                       {kChannelConfig, kFp8Rows},
                                       {std::string(R"({"quant_method": "mxfp8"})"), kMxfp8},
                                       {kModelOptConfig, kNvfp4}}) {
    Json json = qwen3();
    json["quantization_config"] = Json::parse(config);
    const TemporaryDirectory at;
    std::ofstream(at.file("config.json")) << json.dump();
    const auto device = cpu::open_device({.threads = 1}).value();
    const auto model = LoadedModel::load(*device, at.path(), {.format = LoadFormat::kDummy});
    ASSERT_TRUE(model.ok()) << model.status().message;
    const MoeConfig& moe = model.value()->config().decoder.moe();
    EXPECT_EQ((WeightFormat{moe.expert_w, moe.expert_scales}), format);
  }
}

}  // namespace sluice::test
