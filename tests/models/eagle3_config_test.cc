// config.json of EAGLE3 heads as various tools write it: values that are read, and the messages of values
// that are rejected.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "models/draft.h"

namespace sluice::test {
namespace {

// The properties of gpt-oss-120b that a head must fit.
ModelConfig model_of(int64_t layers = 36) {
  ModelConfig out;
  out.decoder.vocab = 201088, out.decoder.hidden = 2880;
  out.decoder.layers.resize(static_cast<size_t>(layers));
  return out;
}

// SpecForge's configs/gpt-oss-120B-eagle3.json.
Json spec_forge() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLMEagle3"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 1, "draft_vocab_size": 32000, "eos_token_id": 2, "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2880, "initializer_range": 0.02, "intermediate_size": 17280, "max_position_embeddings": 4096,
    "mlp_bias": false, "model_type": "llama", "num_attention_heads": 64, "num_hidden_layers": 1,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
    "vocab_size": 201088})");
}

// A head written by speculators; its nested object holds only values that differ from transformers' defaults.
Json speculators() {
  return Json::parse(R"({
    "architectures": ["Eagle3Speculator"], "draft_vocab_size": 64000, "norm_before_fc": true,
    "norm_before_residual": true, "eagle_aux_hidden_state_layer_ids": null, "speculators_model_type": "eagle3",
    "speculators_config": {"algorithm": "eagle3", "default_proposal_method": "greedy",
      "proposal_methods": [{"accept_tolerance": 0.0, "proposal_type": "greedy", "speculative_tokens": 3}]},
    "target_hidden_size": null,
    "transformer_layer_config": {"head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880, "model_type": "llama",
      "num_attention_heads": 64, "num_hidden_layers": 1, "num_key_value_heads": 8, "vocab_size": 201088}})");
}

// A head written by ModelOpt.
Json model_opt() {
  Json out = spec_forge();
  out["draft_vocab_size"] = nullptr;
  out["eagle_config"] = Json::parse(R"({
    "eagle_aux_hidden_state_layer_ids": [24, 30, 36], "use_aux_hidden_state": true, "norm_before_fc": true,
    "use_input_layernorm_in_first_layer": true, "use_last_layernorm": true, "use_mtp_layernorm": false,
    "next_layer_regular": true, "parallel_draft_step": 1, "parallel_draft_heads_num_layers": null})");
  return out;
}

DraftLayerConfig read(const Json& config, int64_t layers = 36) {
  const auto out = read_eagle3_config(JsonAt(config, "config.json"), model_of(layers));
  EXPECT_TRUE(out.ok()) << out.status().message;
  return out.ok() ? out.value() : DraftLayerConfig{};
}

std::string error(Json config, const std::function<void(Json&)>& change, int64_t layers = 36) {
  change(config);
  return read_eagle3_config(JsonAt(config, "config.json"), model_of(layers)).status().message;
}
std::string error(const std::function<void(Json&)>& change) { return error(spec_forge(), change); }

using Taps = std::vector<int32_t>;
using FeatureNorm = DraftLayerConfig::FeatureNorm;

}  // namespace

TEST(DraftLayerConfig, ReadsAHeadOfSpecForge) {
  const DraftLayerConfig c = read(spec_forge());
  EXPECT_EQ(c.vocab, 201088);
  EXPECT_EQ(c.draft_vocab, 32000);
  EXPECT_EQ(c.hidden, 2880);
  EXPECT_EQ(c.model_hidden, 2880);
  EXPECT_EQ(c.taps, (Taps{2, 18, 33}));
  EXPECT_EQ(c.features(), 8640);
  EXPECT_TRUE(c.fc);
  EXPECT_EQ(c.feature_norm, FeatureNorm::kNone);
  EXPECT_FALSE(c.norm_before_residual || c.norm_output);
  EXPECT_DOUBLE_EQ(c.eps, 1e-5);
  EXPECT_EQ(c.attention, (AttentionConfig{.hidden = 2880,
                                          .heads = 64,
                                          .kv_heads = 8,
                                          .head_dim = 64,
                                          .input = 5760,
                                          .scale = 0.125,
                                          .rotary = 64}));
  EXPECT_EQ(c.mlp.hidden, 2880);
  EXPECT_EQ(c.mlp.intermediate, 17280);
  EXPECT_TRUE(c.mlp.dense && c.mlp.residual);
  EXPECT_TRUE(check_moe(c.mlp).ok());
  EXPECT_DOUBLE_EQ(c.rope.theta, 10000);
  EXPECT_DOUBLE_EQ(c.rope.factor, 1);
}

TEST(DraftLayerConfig, ReadsAHeadOfSpeculatorsWithTransformersDefaults) {
  Json config = speculators();
  const DraftLayerConfig c = read(config);
  EXPECT_EQ(c.draft_vocab, 64000);
  EXPECT_EQ(c.taps, (Taps{2, 18, 33}));
  EXPECT_EQ(c.feature_norm, FeatureNorm::kAll);
  EXPECT_TRUE(c.norm_before_residual);
  EXPECT_FALSE(c.norm_output);
  EXPECT_EQ(c.mlp.intermediate, 2880);
  EXPECT_DOUBLE_EQ(c.eps, 1e-6);
  EXPECT_EQ(read_speculative_tokens(JsonAt(config, "config.json")).value(), 3);
  config.erase("norm_before_residual"), config["norm_output"] = true;
  config["architectures"] = {"Eagle3DraftModel"};
  config["eagle_aux_hidden_state_layer_ids"] = {3, 18, 36};
  EXPECT_TRUE(read(config).norm_before_residual);
  EXPECT_TRUE(read(config).norm_output);
  EXPECT_EQ(read(config).taps, (Taps{3, 18, 36}));
  config["norm_before_residual"] = false;
  EXPECT_FALSE(read(config).norm_before_residual);
  config["transformer_layer_config"].erase("num_attention_heads");
  EXPECT_EQ(read(config).attention.heads, 32);
  config["transformer_layer_config"].erase("intermediate_size");
  EXPECT_EQ(read(config).mlp.intermediate, 11008);
  config.erase("speculators_config");
  EXPECT_EQ(read_speculative_tokens(JsonAt(config, "config.json")).value(), std::nullopt);
}

TEST(DraftLayerConfig, ReadsAHeadOfModelOpt) {
  const DraftLayerConfig c = read(model_opt());
  EXPECT_EQ(c.draft_vocab, 201088);
  EXPECT_EQ(c.taps, (Taps{24, 30, 36}));
  EXPECT_EQ(c.feature_norm, FeatureNorm::kAll);
  EXPECT_FALSE(c.norm_before_residual);
}

TEST(DraftLayerConfig, ReadsAShortHeadOfNvidia) {
  Json config = model_opt();
  config["eagle_config"]["use_aux_hidden_state"] = false, config["eagle_config"]["norm_before_fc"] = false;
  config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = Json::array();
  const DraftLayerConfig c = read(config);
  EXPECT_FALSE(c.fc);
  EXPECT_EQ(c.taps, (Taps{37}));
  EXPECT_EQ(c.features(), 2880);
}

TEST(DraftLayerConfig, ReadsAHeadOfNebius) {
  Json config = spec_forge();
  config["architectures"] = {"LlamaForCausalLM"};
  config["intermediate_size"] = 11520;
  config.erase("draft_vocab_size"), config["truncated_vocab_size"] = 64000;
  config["rope_theta"] = 150000, config["max_position_embeddings"] = 131072;
  config["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 32.0},   {"original_max_position_embeddings", 4096},
      {"beta_fast", 32.0},   {"beta_slow", 1.0}, {"truncate", false}};
  const DraftLayerConfig c = read(config);
  EXPECT_EQ(c.draft_vocab, 64000);
  EXPECT_DOUBLE_EQ(c.rope.theta, 150000);
  EXPECT_DOUBLE_EQ(c.rope.factor, 32);
  EXPECT_DOUBLE_EQ(c.rope.original_context, 4096);
  EXPECT_NEAR(c.rope.attention_factor, 0.1 * std::log(32.) + 1, 1e-12);
  EXPECT_EQ(c.rope.truncate, RopeScaling::Truncate::kNo);
}

TEST(DraftLayerConfig, ReadsAHeadWithANormOfEachFeature) {
  Json config = spec_forge();
  config["architectures"] = {"Eagle3LlamaForCausalLM"};
  config["norm_output"] = true, config["attention_bias"] = true;
  config["eagle_aux_hidden_state_layer_ids"] = {1, 9, 17, 25, 33}, config["num_aux_hidden_states"] = 5;
  for (const char* key : {"fc_norm", "use_aux_norm"}) {
    Json named = config;
    named[key] = true;
    const DraftLayerConfig c = read(named);
    EXPECT_EQ(c.feature_norm, FeatureNorm::kEach) << key;
    EXPECT_TRUE(c.norm_output && c.attention.qkv_bias && c.attention.o_bias);
    EXPECT_EQ(c.taps, (Taps{1, 9, 17, 25, 33}));
    EXPECT_EQ(c.features(), 5 * 2880);
  }
}

// Top-level ids number the boundaries between layers. Ids only in eagle_config number layers whose output is
// a feature, unless one equals the number of layers.
TEST(DraftLayerConfig, LayerIdsBecomeTheLayersWhoseInputIsAFeature) {
  const auto taps = [](const Json& top, const Json& eagle, int64_t layers = 36) {
    Json config = model_opt();
    config["eagle_aux_hidden_state_layer_ids"] = top;
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = eagle;
    return read(config, layers).taps;
  };
  EXPECT_EQ(taps(nullptr, {1, 17, 32}), (Taps{2, 18, 33}));
  EXPECT_EQ(taps(nullptr, {1, 17, 35}), (Taps{2, 18, 36}));
  EXPECT_EQ(taps(nullptr, {24, 30, 36}), (Taps{24, 30, 36}));
  EXPECT_EQ(taps({1, 17, 33}, nullptr), (Taps{1, 17, 33}));
  EXPECT_EQ(taps({1, 17, 33}, {1, 17, 32}), (Taps{1, 17, 33}));
  EXPECT_EQ(taps({36, 0}, nullptr), (Taps{36, 0}));
  EXPECT_EQ(taps(nullptr, nullptr, 24), (Taps{2, 12, 21}));
  EXPECT_EQ(taps(Json::array(), Json::array(), 24), (Taps{2, 12, 21}));
  EXPECT_EQ(taps(nullptr, nullptr, 3), (Taps{2, 1, 0}));
}

TEST(DraftLayerConfig, AHeadMayBeNarrowerThanItsModel) {
  Json config = spec_forge();
  config["hidden_size"] = 1024, config["target_hidden_size"] = 2880;
  config.erase("head_dim");
  const DraftLayerConfig c = read(config);
  EXPECT_EQ(c.hidden, 1024);
  EXPECT_EQ(c.features(), 8640);
  EXPECT_EQ(c.attention.head_dim, 16);
  EXPECT_EQ(c.attention.input, 2048);
}

TEST(DraftLayerConfig, RefusesHeadsOfOtherModels) {
  EXPECT_EQ(error([](Json& c) { c["hidden_size"] = 4096; }),
            "config.json: hidden_size: wanted the model's 2880 without target_hidden_size, found 4096");
  EXPECT_EQ(error([](Json& c) { c["target_hidden_size"] = 4096; }),
            "config.json: target_hidden_size: wanted the model's 2880, found 4096");
  EXPECT_EQ(error([](Json& c) { c["vocab_size"] = 128256; }),
            "config.json: vocab_size: wanted the model's 201088, found 128256");
  EXPECT_EQ(error([](Json& c) { c["draft_vocab_size"] = 201089; }),
            "config.json: draft_vocab_size: wanted an integer from 1 to 201088, found 201089");
  EXPECT_EQ(error([](Json& c) {
              c["eagle_aux_hidden_state_layer_ids"] = {1, 17, 37};
            }),
            "config.json: eagle_aux_hidden_state_layer_ids[2]: wanted an integer from 0 to 36, found 37");
  EXPECT_EQ(error([](Json& c) {
              c["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = {-1, 17, 36};
            }),
            "config.json: eagle_config.eagle_aux_hidden_state_layer_ids[0]: wanted an integer from 0 to 36, "
            "found -1");
  EXPECT_EQ(
      error(
          spec_forge(), [](Json&) {}, 2),
      "config.json: eagle_aux_hidden_state_layer_ids: wanted the ids, which have no default for a model of 2 "
      "layers, found none");
  EXPECT_EQ(error([](Json& c) { c["num_aux_hidden_states"] = 5; }),
            "config.json: num_aux_hidden_states: wanted 3, the number of layer ids, found 5");
}

TEST(DraftLayerConfig, RefusesOtherHeads) {
  const std::string architectures =
      "config.json: architectures: wanted one of LlamaForCausalLMEagle3, Eagle3LlamaForCausalLM, "
      "Eagle3DraftModel, "
      "Eagle3Speculator, or LlamaForCausalLM with draft_vocab_size or truncated_vocab_size, found ";
  EXPECT_EQ(error([](Json& c) { c["architectures"] = {"GptOssForCausalLM"}; }),
            architectures + "GptOssForCausalLM");
  EXPECT_EQ(error([](Json& c) { c["architectures"] = {"LlamaForCausalLM"}, c.erase("draft_vocab_size"); }),
            architectures + "LlamaForCausalLM");
  EXPECT_EQ(error([](Json& c) { c["architectures"] = Json::array(); }), architectures + "an array of 0");
  EXPECT_EQ(
      error([](Json& c) { c["num_hidden_layers"] = 4; }),
      "config.json: num_hidden_layers: wanted 1 (heads of several layers, as P-EAGLE's, are not supported), "
      "found 4");
  EXPECT_EQ(error(speculators(), [](Json& c) { c["speculators_model_type"] = "peagle"; }),
            "config.json: speculators_model_type: wanted \"eagle3\", the only value that EAGLE3 draft models "
            "have, found "
            "\"peagle\"");
  EXPECT_EQ(error(speculators(), [](Json& c) { c["transformer_layer_config"]["model_type"] = "qwen3"; }),
            "config.json: transformer_layer_config.model_type: wanted \"llama\", the only value that EAGLE3 "
            "draft models "
            "have, found \"qwen3\"");
  EXPECT_EQ(error([](Json& c) { c["hidden_act"] = "gelu"; }),
            "config.json: hidden_act: wanted \"silu\", the only value that EAGLE3 draft models have, found "
            "\"gelu\"");
  EXPECT_EQ(error([](Json& c) { c["quantization_config"]["quant_method"] = "fp8"; }),
            "config.json: quantization_config: wanted no such key, found an object");
  EXPECT_EQ(error([](Json& c) { c["mlp_bias"] = true; }),
            "config.json: mlp_bias: wanted false, the only value that EAGLE3 draft models have, found true");
  EXPECT_EQ(error([](Json& c) { c["tie_word_embeddings"] = true; }),
            "config.json: tie_word_embeddings: wanted false, the only value that EAGLE3 draft models have, "
            "found true");
  EXPECT_EQ(error([](Json& c) { c["parallel_drafting"] = true; }),
            "config.json: parallel_drafting: wanted false, the only value that EAGLE3 draft models have, "
            "found true");
  EXPECT_EQ(error(model_opt(), [](Json& c) { c["eagle_config"]["parallel_draft_step"] = 4; }),
            "config.json: eagle_config.parallel_draft_step: wanted 1, the only value that EAGLE3 draft "
            "models have, "
            "found 4");
  EXPECT_EQ(error(model_opt(), [](Json& c) { c["eagle_config"]["use_last_layernorm"] = false; }),
            "config.json: eagle_config.use_last_layernorm: wanted true, the only value that EAGLE3 draft "
            "models have, "
            "found false");
}

TEST(DraftLayerConfig, RefusesContradictions) {
  EXPECT_EQ(error([](Json& c) { c["norm_before_fc"] = c["fc_norm"] = true; }),
            "config.json: fc_norm: wanted false with norm_before_fc, found true");
  EXPECT_EQ(
      error(model_opt(), [](Json& c) { c["eagle_config"]["use_aux_hidden_state"] = false; }),
      "config.json: eagle_config.norm_before_fc: wanted false without use_aux_hidden_state, found true");
  EXPECT_EQ(error([](Json& c) { c["use_aux_hidden_state"] = false, c["fc_norm"] = true; }),
            "config.json: fc_norm: wanted false without use_aux_hidden_state, found true");
  EXPECT_EQ(error([](Json& c) {
              c["use_aux_hidden_state"] = false, c["hidden_size"] = 1024, c["target_hidden_size"] = 2880;
            }),
            "config.json: hidden_size: wanted the model's 2880 without use_aux_hidden_state, found 1024");
  EXPECT_EQ(error([](Json& c) { c["norm_output"] = 1; }),
            "config.json: norm_output: wanted true or false, found 1");
  EXPECT_EQ(error([](Json& c) { c["num_key_value_heads"] = 7; }),
            "config.json: num_attention_heads: wanted a multiple of num_key_value_heads = 7, found 64");
  EXPECT_EQ(error([](Json& c) { c.erase("intermediate_size"); }),
            "config.json: intermediate_size: wanted a value, found no such key");
}

TEST(DraftLayerConfig, ReadsLlama3ScalingOfPositions) {
  const Json llama3 = {{"factor", 16.0},
                       {"high_freq_factor", 8.0},
                       {"low_freq_factor", 2.0},
                       {"original_max_position_embeddings", 4096},
                       {"rope_type", "llama3"}};
  Json config = spec_forge();
  config["rope_scaling"] = llama3, config["rope_theta"] = 500000;
  const RopeScaling rope = read(config).rope;
  EXPECT_EQ(rope.blend, RopeScaling::Blend::kRotations);
  EXPECT_DOUBLE_EQ(rope.theta, 500000);
  EXPECT_DOUBLE_EQ(rope.factor, 16);
  EXPECT_DOUBLE_EQ(rope.beta_fast, 8);
  EXPECT_DOUBLE_EQ(rope.beta_slow, 2);
  EXPECT_DOUBLE_EQ(rope.original_context, 4096);
  EXPECT_DOUBLE_EQ(rope.attention_factor, 1);
  config = speculators();
  config["transformer_layer_config"]["rope_parameters"] = llama3;
  config["transformer_layer_config"]["rope_parameters"]["rope_theta"] = 20000;
  EXPECT_DOUBLE_EQ(read(config).rope.theta, 20000);
  EXPECT_EQ(read(config).rope.blend, RopeScaling::Blend::kRotations);
}

TEST(DraftLayerConfig, RefusesUnsupportedScalingOfPositions) {
  EXPECT_EQ(error([&](Json& c) {
              c["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
            }),
            "config.json: rope_scaling.type: wanted default, yarn or llama3, found \"linear\"");
  EXPECT_EQ(error(speculators(),
                  [&](Json& c) {
                    c["transformer_layer_config"]["rope_parameters"] = {{"rope_type", "dynamic"}};
                  }),
            "config.json: transformer_layer_config.rope_parameters.rope_type: wanted default, yarn or "
            "llama3, found "
            "\"dynamic\"");
  EXPECT_EQ(error([&](Json& c) {
              c["rope_scaling"] = {{"type", "llama3"}, {"low_freq_factor", 4.0}, {"high_freq_factor", 4.0}};
            }),
            "config.json: rope_scaling.high_freq_factor: wanted a number above low_freq_factor, found 4.0");
  EXPECT_EQ(error([](Json& c) {
              c["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 150000}};
            }),
            "");
}

}  // namespace sluice::test
