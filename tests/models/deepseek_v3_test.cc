// DeepSeek V3: config.json, tensors, and the layer for multi-token prediction. For logits see
// tests/models/family_parity_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "backends/cpu/device.h"
#include "engine/engine.h"
#include "harness/test_data.h"
#include "models/draft.h"
#include "nn/moe/problems.h"
#include "weights/files.h"

namespace sluice::test {
namespace {

// Published values: deepseek-ai/DeepSeek-V3 of 2024-12 and moonshotai/Moonlight-16B-A3B of 2025-02.
Result<ModelConfig> published(const std::string& name) { return read_model_config(test_data(name)); }

// Reads DeepSeek V3's config.json with one change.
Result<ModelConfig> changed(const std::function<void(Json&)>& change) {
  Json config = read_json(test_data("deepseek-v3/config.json"), 1 << 20).value();
  change(config);
  const TemporaryDirectory directory;
  std::ofstream(directory.file("config.json")) << config.dump();
  return read_model_config(directory.path());
}

std::string error_of_v3(const std::function<void(Json&)>& change) {
  const auto read = changed(change);
  EXPECT_FALSE(read.ok());
  const std::string& message = read.status().message;
  const size_t at = message.find("config.json: ");
  return at == std::string::npos ? message : message.substr(at);
}

std::vector<TensorSpec> tensors_of(const ModelConfig& config) {
  const auto all = families();
  const auto family =
      std::find_if(all.begin(), all.end(), [](const Family* f) { return f->model_type == "deepseek_v3"; });
  return (*family)->tensors(config, MoeNaming::kDeepSeekV3);
}

double elements(const std::vector<TensorSpec>& specs) {
  double out = 0;
  for (const TensorSpec& spec : specs) {
    double of_one = is_codes(spec) ? 1 : 0;
    for (const int64_t n : spec.shape) of_one *= static_cast<double>(n);
    out += of_one;
  }
  return out;
}

}  // namespace

TEST(DeepSeekV3, ReadsThePublishedConfig) {
  const auto read = published("deepseek-v3");
  ASSERT_TRUE(read.ok()) << read.status().message;
  const ModelConfig& c = read.value();
  const DecoderConfig& d = c.decoder;
  EXPECT_EQ(std::tuple(c.architecture, c.context, c.mtp_layers),
            std::tuple("DeepseekV3ForCausalLM", 163840, 1));
  EXPECT_EQ(c.stop_tokens, std::vector<int32_t>{1});
  EXPECT_EQ(std::tuple(d.vocab, d.hidden, std::ssize(d.layers), d.eps), std::tuple(129280, 7168, 61, 1e-6));
  EXPECT_EQ(d.moe_layers().front(), 3);
  EXPECT_EQ(d.moe_layers().size(), 58u);
  const AttentionConfig& a = d.layers[60].attention;
  EXPECT_EQ(d.layers[0].attention, a);
  ASSERT_TRUE(a.latent);
  EXPECT_EQ(*a.latent, (LatentShape{.q_rank = 1536, .rank = 512, .nope = 128, .v_dim = 128, .eps = 1e-6}));
  EXPECT_EQ(std::tuple(a.heads, a.kv_heads, a.head_dim, a.rotary, a.pairs),
            std::tuple(128, 1, 576, 64, RopePairs::kInterleaved));
  EXPECT_NEAR(a.scale, 0.1352337788608801, 1e-12);  // 192^-0.5 (0.1 ln 40 + 1)^2
  EXPECT_EQ(std::tuple(d.rope.theta, d.rope.factor, d.rope.attention_factor, d.rope.truncate),
            std::tuple(10000, 40, 1, RopeScaling::Truncate::kYes));
  // Apart from the residual stream, the layer equals known_moe()'s.
  MoeConfig known = known_moe("deepseek-v3").value();
  known.residual = true;
  known.expert_w = known.shared_w = DType::kE4M3;
  known.expert_scales = known.shared_scales = WeightScales::kBlocks;
  EXPECT_EQ(d.moe(), known);
  const MoeConfig& dense = d.layers[2].mlp;
  EXPECT_EQ(std::tuple(dense.dense, dense.intermediate, dense.residual), std::tuple(true, 18432, true));
}

TEST(DeepSeekV3, ReadsMoonlight) {
  const auto read = published("moonlight-16b-a3b");
  ASSERT_TRUE(read.ok()) << read.status().message;
  const DecoderConfig& d = read.value().decoder;
  EXPECT_EQ(std::tuple(d.vocab, d.hidden, std::ssize(d.layers), d.eps), std::tuple(163840, 2048, 27, 1e-5));
  EXPECT_EQ(std::tuple(d.rope.theta, d.rope.factor), std::tuple(50000, 1));
  const AttentionConfig& a = d.layers[0].attention;
  ASSERT_TRUE(a.latent);
  EXPECT_EQ(std::tuple(a.latent->q_rank, a.latent->eps, a.heads), std::tuple(0, 1e-6, 16));
  EXPECT_NEAR(a.scale, 1 / std::sqrt(192.0), 1e-15);
  MoeConfig known = known_moe("moonlight-16b-a3b").value();
  known.residual = true;
  EXPECT_EQ(d.moe(), known);
  EXPECT_EQ(shared_slots(d.moe()), 2);
}

// 671 and 16 billion parameters, as the authors count.
TEST(DeepSeekV3, ListsEveryTensor) {
  EXPECT_NEAR(elements(tensors_of(published("deepseek-v3").value())), 671.0e9, 0.05e9);
  EXPECT_NEAR(elements(tensors_of(published("moonlight-16b-a3b").value())), 15.96e9, 0.005e9);
  for (const char* name : {"deepseek-v3", "moonlight-16b-a3b"}) {
    const ModelConfig config = published(name).value();
    std::set<std::pair<std::string, int64_t>> listed;
    for (const TensorSpec& t : tensors_of(config)) listed.emplace(t.weight, t.layer);
    for (const HeldSlot& slot : decoder_weights(config.decoder)) {
      if (slot.name.starts_with("experts.") || slot.name.starts_with("shared.")) continue;
      EXPECT_TRUE(listed.contains({slot.name, slot.layer})) << slot.text();
    }
  }
}

TEST(DeepSeekV3, TooManySharedExpertsForSlotsHaveASeparatePath) {
  for (const auto& [experts, slots] : {std::pair{1, 1}, {8, 8}, {9, 0}}) {
    const auto read = changed([&, count = experts](Json& c) { c["n_shared_experts"] = count; });
    ASSERT_TRUE(read.ok()) << read.status().message;
    EXPECT_EQ(shared_slots(read.value().decoder.moe()), slots) << experts;
    EXPECT_EQ(read.value().decoder.moe().shared_intermediate, 2048 * experts);
  }
}

TEST(DeepSeekV3, TransformersFiveWritesRopeParametersAndPlainOnesNeedNone) {
  const auto five = [](Json& c) {
    c["rope_parameters"] = c["rope_scaling"];
    c["rope_parameters"]["rope_type"] = "yarn", c["rope_parameters"]["rope_theta"] = 50000;
    c.erase("rope_scaling"), c.erase("rope_theta");
  };
  DecoderConfig read = changed(five).value().decoder;
  EXPECT_DOUBLE_EQ(read.rope.theta, 50000);
  // An empty rope_scaling counts as absent.
  read = changed([&](Json& c) { five(c), c["rope_scaling"] = Json::object(); }).value().decoder;
  EXPECT_DOUBLE_EQ(read.rope.theta, 50000);
  EXPECT_NEAR(read.layers[0].attention.scale, 0.1352337788608801, 1e-12);
  const DecoderConfig plain = changed([&](Json& c) {
                                five(c);
                                c["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 20000}};
                              })
                                  .value()
                                  .decoder;
  EXPECT_EQ(std::tuple(plain.rope.theta, plain.rope.factor), std::tuple(20000, 1));
  EXPECT_NEAR(plain.layers[0].attention.scale, 1 / std::sqrt(192.0), 1e-15);
  // YaRN with different factors for cos and sin and for the scores.
  const DecoderConfig apart =
      changed([](Json& c) { c["rope_scaling"]["mscale_all_dim"] = 0.5; }).value().decoder;
  const double half = 0.05 * std::log(40.0) + 1, whole = 0.1 * std::log(40.0) + 1;
  EXPECT_NEAR(apart.layers[0].attention.scale, half * half / std::sqrt(192.0), 1e-12);
  EXPECT_NEAR(apart.rope.attention_factor, whole / half, 1e-12);
}

TEST(DeepSeekV3, RefusesByKey) {
  const auto only = [](const std::string& key, const std::string& wanted, const std::string& found) {
    return "config.json: " + key + ": wanted " + wanted +
           ", the only value that DeepSeek V3 models have, found " + found;
  };
  EXPECT_EQ(error_of_v3([](Json& c) { c["scoring_func"] = "softmax"; }),
            only("scoring_func", "\"sigmoid\"", "\"softmax\""));
  EXPECT_EQ(error_of_v3([](Json& c) { c["topk_method"] = "greedy"; }),
            only("topk_method", "\"noaux_tc\"", "\"greedy\""));
  EXPECT_EQ(error_of_v3([](Json& c) { c["norm_topk_prob"] = false; }),
            only("norm_topk_prob", "true", "false"));
  // For transformers null is false.
  EXPECT_EQ(error_of_v3([](Json& c) { c["norm_topk_prob"] = nullptr; }),
            only("norm_topk_prob", "true", "null"));
  EXPECT_EQ(error_of_v3([](Json& c) { c["rope_interleave"] = nullptr; }),
            only("rope_interleave", "true", "null"));
  EXPECT_EQ(error_of_v3([](Json& c) { c["rope_interleave"] = false; }),
            only("rope_interleave", "true", "false"));
  EXPECT_EQ(error_of_v3([](Json& c) { c["moe_layer_freq"] = 2; }), only("moe_layer_freq", "1", "2"));
  EXPECT_EQ(error_of_v3([](Json& c) { c["rope_scaling"]["type"] = "linear"; }),
            only("rope_scaling.type", "\"yarn\"", "\"linear\""));
  EXPECT_EQ(
      error_of_v3([](Json& c) { c["quantization_config"]["quant_method"] = "awq"; }),
      "config.json: quantization_config.quant_method: wanted fp8, mxfp8, compressed-tensors, modelopt or "
      "quark, found \"awq\"");
  EXPECT_EQ(
      error_of_v3([](Json& c) {
        c["quantization_config"]["weight_block_size"] = {64, 64};
      }),
      "config.json: quantization_config.weight_block_size: wanted [128,128], the only value that supported "
      "quantized models have, found an array of 2");
  EXPECT_EQ(error_of_v3([](Json& c) { c["first_k_dense_replace"] = 61; }),
            "config.json: first_k_dense_replace: wanted less than num_hidden_layers = 61, found 61");
  EXPECT_EQ(error_of_v3([](Json& c) { c.erase("q_lora_rank"); }),
            "config.json: q_lora_rank: wanted a value, found no such key");
  EXPECT_EQ(error_of_v3([](Json& c) { c["qk_rope_head_dim"] = 63; }),
            "config.json: qk_rope_head_dim: wanted an even number (elements rotate in pairs), found 63");
  EXPECT_EQ(error_of_v3([](Json& c) { c["num_key_value_heads"] = 8; }),
            "config.json: num_key_value_heads: wanted num_attention_heads = 128, found 8");
  EXPECT_EQ(error_of_v3([](Json& c) { c["kv_lora_rank"] = 1000; }),
            "config.json: kv_lora_rank: wanted at most 960 with qk_rope_head_dim = 64, found 1000");
  EXPECT_EQ(error_of_v3([](Json& c) { c["n_shared_experts"] = 0; }),
            "config.json: n_shared_experts: wanted an integer from 1 to 64, found 0");
  EXPECT_EQ(error_of_v3([](Json& c) { c["num_experts_per_tok"] = 33; }),
            "config.json: num_experts_per_tok: wanted an integer from 1 to 32, found 33");
  EXPECT_EQ(error_of_v3([](Json& c) { c["index_topk"] = 2048; }),
            "config.json: index_topk: wanted no such key, found 2048");
  EXPECT_EQ(error_of_v3([](Json& c) { c["n_group"] = 7; }),
            "config.json: n_group: wanted a divisor of n_routed_experts = 256, found 7");
  EXPECT_EQ(error_of_v3([](Json& c) { c["topk_group"] = 9; }),
            "config.json: topk_group: wanted at most n_group = 8, found 9");
  EXPECT_EQ(error_of_v3([](Json& c) { c["n_group"] = 256, c["topk_group"] = 4; }),
            "config.json: num_experts_per_tok: wanted at most the 4 experts of topk_group groups, found 8");
}

// Kimi K2's config.json has its own model_type, and its YaRN blend is a step.
TEST(DeepSeekV3, ReadsKimiK2) {
  const auto read = changed([](Json& c) {
    c["model_type"] = "kimi_k2", c["rope_scaling"]["beta_fast"] = 1.0, c["rope_scaling"]["factor"] = 32.0;
    c["n_group"] = c["topk_group"] = 1, c["num_nextn_predict_layers"] = 0;
  });
  ASSERT_TRUE(read.ok()) << read.status().message;
  const RopeScaling& rope = read.value().decoder.rope;
  EXPECT_EQ(std::tuple(rope.beta_fast, rope.beta_slow), std::tuple(1, 1));
  std::vector<float> table(2 * 64);
  const Status status = rope_table(rope, 2, 64, table.data());
  EXPECT_TRUE(status.ok()) << status.message;
  // Pairs below the step keep their frequency; pairs above it are slowed down.
  EXPECT_FLOAT_EQ(table[64 + 1], std::sin(1.f));
  EXPECT_NEAR(table[64 + 2 * 31 + 1], std::pow(10000.0, -31.0 / 32) / 32, 1e-9);
}

// Defaults of transformers: expert scores are scaled by 2.5, and there is one shared expert.
TEST(DeepSeekV3, MissingKeysHaveTransformersDefaults) {
  const MoeConfig moe =
      changed([](Json& c) { c.erase("routed_scaling_factor"), c.erase("n_shared_experts"); })
          .value()
          .decoder.moe();
  EXPECT_EQ(std::tuple(moe.scale, moe.shared_intermediate), std::tuple(2.5, 2048));
}

// Rows of both latents in one matrix begin at multiples of 16 bytes, whatever their sizes.
TEST(DeepSeekV3, OddSizesRun) {
  Json config = read_json(test_data("deepseek_v3/v3/config.json"), 1 << 20).value();
  config["kv_lora_rank"] = 20, config["qk_rope_head_dim"] = 6, config["num_attention_heads"] = 3;
  config["num_key_value_heads"] = 3;
  for (const bool with_latent : {true, false}) {
    config["q_lora_rank"] = with_latent ? Json(20) : Json();
    const TemporaryDirectory directory;
    std::ofstream(directory.file("config.json")) << config.dump();
    for (const DType x : {DType::kBF16, DType::kF32}) {
      const auto device = cpu::open_device({.threads = 1}).value();
      const auto model = LoadedModel::load(*device, directory.path(), {.x = x, .format = LoadFormat::kDummy});
      ASSERT_TRUE(model.ok()) << model.status().message;
      const auto engine = Engine::make(*device, model.value()->config().decoder, model.value()->weights(),
                                       {.max_model_len = 32, .max_num_seqs = 1, .max_num_batched_tokens = 8});
      ASSERT_TRUE(engine.ok()) << engine.status().message;
      const auto logits = engine.value()->logits({3, 1, 4, 1, 5, 9, 2, 6, 5, 3}, {0, 9});
      ASSERT_TRUE(logits.ok()) << logits.status().message;
      EXPECT_TRUE(std::ranges::all_of(logits.value(), [](float l) { return std::isfinite(l); }));
    }
  }
}

// Scales are the same in any number type.
TEST(DeepSeekV3, ScalesOfFp8MayHaveAnyTypeOfNumbers) {
  const auto file = Checkpoint::open(test_data("deepseek_v3/fp8"));
  ASSERT_TRUE(file.ok()) << file.status().message;
  const auto weights_with = [&](StoredType type, int64_t* bytes) {
    const TemporaryDirectory directory;
    std::vector<StoredTensor> tensors;
    for (const CheckpointTensor& t : file.value()->tensors()) {
      tensors.push_back({{t.name, t.type, t.shape}, {t.data, t.data + t.bytes}});
      if (!t.name.ends_with("_scale_inv")) continue;
      // 0.5 in each type, in place of the recorded scales.
      const auto count = static_cast<size_t>(t.bytes / 4);
      std::vector<std::byte> data(count * (type == StoredType::kF32 ? 4 : 2));
      for (size_t i = 0; i < count; ++i) {
        const float f32 = 0.5f;
        const BF16 bf16 = to_bf16(0.5f);
        if (type == StoredType::kF32) std::memcpy(&data[4 * i], &f32, 4);
        if (type == StoredType::kBF16) std::memcpy(&data[2 * i], &bf16, 2);
      }
      tensors.back() = {{t.name, type, t.shape}, data};
    }
    write_tensors(directory.file("model.safetensors"), tensors);
    std::filesystem::copy_file(test_data("deepseek_v3/fp8/config.json"), directory.file("config.json"));
    const auto device = cpu::open_device({.threads = 1}).value();
    const auto model = LoadedModel::load(*device, directory.path());
    EXPECT_TRUE(model.ok()) << model.status().message;
    std::vector<std::byte> out;
    if (!model.ok()) return out;
    const Tensor kv_b = model.value()->weights()(1, "attention.kv_b");
    *bytes = bytes_of(kv_b.dtype, elements_of(kv_b));
    out.assign(kv_b.as<std::byte>(), kv_b.as<std::byte>() + *bytes);
    return out;
  };
  int64_t bytes = 0;
  const auto wanted = weights_with(StoredType::kF32, &bytes);
  ASSERT_FALSE(wanted.empty());
  EXPECT_EQ(weights_with(StoredType::kBF16, &bytes), wanted);
}

// A latent cache has no values, and no type but the activations'.
TEST(DeepSeekV3, ItsCacheHasOneRowPerPosition) {
  const DecoderConfig d = published("moonlight-16b-a3b").value().decoder;
  const CacheLayout layout = cache_layout(d.attention(), 16);
  EXPECT_EQ(layout.page_bytes_of_all(), 27 * 16 * 576 * 2);
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto planned = plan_decoder(device->info(), device->catalog(),
                                    d.with_layouts_of(device->info()).with_caches(CacheType::kE4M3), {});
  EXPECT_EQ(
      planned.status().message,
      "decoder: layer 0: kv_cache_dtype: wanted the type of the activations (bf16) with latent attention, "
      "found e4m3");
}

TEST(DeepSeekV3, ItsDraftLayerHasTheConfigOfItsLastLayer) {
  const ModelConfig model = published("deepseek-v3").value();
  const DraftLayerConfig c = mtp_config(model).value();
  EXPECT_EQ(c.taps, std::vector<int32_t>{62});
  EXPECT_EQ(std::tuple(c.vocab, c.draft_vocab, c.hidden, c.norm_output),
            std::tuple(129280, 129280, 7168, true));
  EXPECT_EQ(c.attention, model.decoder.layers.back().attention);
  EXPECT_EQ(c.mlp, model.decoder.layers.back().mlp);
  EXPECT_EQ(mtp_config(published("moonlight-16b-a3b").value()).status().message,
            "mtp: wanted a model with layers for multi-token prediction (num_nextn_predict_layers), found "
            "DeepseekV3ForCausalLM without");
}

}  // namespace sluice::test
