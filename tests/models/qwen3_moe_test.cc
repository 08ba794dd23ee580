// Qwen3-MoE: config.json and tensors. For logits see tests/models/family_parity_test.cc.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <tuple>

#include "harness/devices.h"
#include "harness/far_device.h"
#include "harness/test_data.h"
#include "models/load.h"

namespace sluice::test {
namespace {

// Published values: Qwen/Qwen3-30B-A3B and Qwen/Qwen3-235B-A22B, config.json of 2025-04.
Result<ModelConfig> published(const std::string& name) { return read_model_config(test_data(name)); }

// Reads the published config.json with one change.
Result<ModelConfig> changed(const std::function<void(Json&)>& change) {
  Json config = read_json(test_data("qwen3-30b-a3b/config.json"), 1 << 20).value();
  change(config);
  const auto path =
      std::filesystem::path(testing::TempDir()) / ("sluice_qwen3_config_" + std::to_string(getpid()));
  std::filesystem::create_directories(path);
  std::ofstream(path / "config.json") << config.dump();
  auto out = read_model_config(path.string());
  std::filesystem::remove_all(path);
  return out;
}

std::string error_of_qwen3(const std::function<void(Json&)>& change) {
  const auto read = changed(change);
  EXPECT_FALSE(read.ok());
  const std::string& message = read.status().message;
  const size_t at = message.find("config.json: ");
  return at == std::string::npos ? message : message.substr(at);
}

const Family& family() {
  const auto all = families();
  return **std::find_if(all.begin(), all.end(),
                        [](const Family* f) { return f->architecture == "Qwen3MoeForCausalLM"; });
}

}  // namespace

TEST(Qwen3Moe, ReadsThePublishedConfigs) {
  for (const auto& [name, layers, hidden, heads, intermediate] :
       {std::tuple{"qwen3-30b-a3b", 48, 2048, 32, 768}, std::tuple{"qwen3-235b-a22b", 94, 4096, 64, 1536}}) {
    SCOPED_TRACE(name);
    const auto read = published(name);
    ASSERT_TRUE(read.ok()) << read.status().message;
    const ModelConfig& c = read.value();
    const DecoderConfig& d = c.decoder;
    EXPECT_EQ(c.architecture, "Qwen3MoeForCausalLM");
    EXPECT_EQ(c.context, 40960);
    EXPECT_EQ(c.stop_tokens, std::vector<int32_t>{151645});
    EXPECT_EQ(c.head, ModelConfig::Head::kOwn);
    EXPECT_EQ(std::tuple(d.vocab, std::ssize(d.layers), d.hidden), std::tuple(151936, layers, hidden));
    EXPECT_DOUBLE_EQ(d.eps, 1e-6);
    EXPECT_EQ(std::tuple(d.rope.theta, d.rope.factor), std::tuple(1e6, 1));
    const AttentionConfig& a = d.layers.front().attention;
    const MoeConfig& moe = d.moe();
    EXPECT_EQ(std::ssize(d.moe_layers()), layers);
    EXPECT_EQ(std::tuple(a.heads, a.kv_heads, a.head_dim, a.rotary), std::tuple(heads, 4, 128, 128));
    EXPECT_TRUE(a.qk_norm && !a.qkv_bias && !a.o_bias && !a.sinks && a.window == 0);
    EXPECT_DOUBLE_EQ(a.qk_norm_eps, 1e-6);
    EXPECT_EQ(std::tuple(moe.experts, moe.top_k, moe.intermediate, moe.hidden),
              std::tuple(128, 8, intermediate, hidden));
    EXPECT_EQ(moe.method, RoutingMethod::kRenormalizeNaive);
    EXPECT_EQ(moe.expert_w, DType::kBF16);
    EXPECT_TRUE(moe.residual && !moe.router_bias && !moe.up_bias && !moe.down_bias);
  }
}

TEST(Qwen3Moe, ListsEveryTensor) {
  const ModelConfig config = published("qwen3-30b-a3b").value();
  const std::vector<TensorSpec> all = family().tensors(config, MoeNaming::kQwen3Moe);
  // Per layer: two norms, four projections, the norms of queries and keys, the router, and three tensors per
  // expert.
  EXPECT_EQ(all.size(), 3u + 48 * (2 + 4 + 2 + 1 + 3 * 128));
  int64_t bytes = 0;
  for (const TensorSpec& t : all) bytes += *stored_bytes(t.type, t.shape);
  EXPECT_EQ(bytes, 61064245248);  // metadata.total_size of the published index: 30,532,122,624 parameters
}

TEST(Qwen3Moe, MissingKeysHaveTransformersDefaults) {
  const ModelConfig plain =
      changed([](Json& c) {
        for (const char* key : {"norm_topk_prob", "rope_theta", "head_dim", "use_sliding_window",
                                "mlp_only_layers", "decoder_sparse_step"})
          c.erase(key);
      }).value();
  EXPECT_EQ(plain.decoder.moe().method, RoutingMethod::kDefault);
  EXPECT_DOUBLE_EQ(plain.decoder.rope.theta, 10000);
  EXPECT_EQ(plain.decoder.layers.front().attention.head_dim, 64);
  const ModelConfig five = changed([](Json& c) {
                             c["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e6}};
                             c["num_local_experts"] = c["num_experts"];
                             c["layer_types"] = Json(48, "full_attention");
                             c.erase("rope_theta"), c.erase("num_experts");
                           }).value();
  EXPECT_DOUBLE_EQ(five.decoder.rope.theta, 5e6);
  EXPECT_EQ(five.decoder.moe().experts, 128);
  EXPECT_TRUE(
      changed([](Json& c) { c["attention_bias"] = true; }).value().decoder.layers.front().attention.o_bias);
}

TEST(Qwen3Moe, LayersThatTheConfigNamesAreDense) {
  const ModelConfig c = changed([](Json& config) {
                          config["mlp_only_layers"] = {0, 5}, config["decoder_sparse_step"] = 2;
                        }).value();
  const DecoderConfig& d = c.decoder;
  EXPECT_EQ(d.moe_layers().front(), 1);
  EXPECT_EQ(d.moe_layers().size(), 23u);  // every second layer except layer 5
  const MoeConfig &dense = d.layers[5].mlp, &experts = d.layers[7].mlp;
  EXPECT_TRUE(dense.dense && dense.residual && !experts.dense);
  EXPECT_EQ(std::tuple(dense.intermediate, dense.experts, dense.expert_w), std::tuple(6144, 1, DType::kBF16));
  EXPECT_EQ(d.layers[5].attention, d.layers[7].attention);
  const std::vector<TensorSpec> all = family().tensors(c, MoeNaming::kQwen3Moe);
  EXPECT_EQ(all.size(), 3u + 48 * (2 + 4 + 2) + 23 * (1 + 3 * 128) + 25 * 3);
  const auto up = std::find_if(all.begin(), all.end(), [](const TensorSpec& t) {
    return t.name == "model.layers.5.mlp.up_proj.weight";
  });
  ASSERT_NE(up, all.end());
  EXPECT_EQ(up->shape, (std::vector<int64_t>{6144, 2048}));
  EXPECT_EQ(up->weight, "experts.up");
}

// As the model card recommends.
TEST(Qwen3Moe, YarnExtendsTheContext) {
  const ModelConfig c =
      changed([](Json& config) {
        config["rope_scaling"] = {
            {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
      }).value();
  EXPECT_EQ(c.context, 131072);
  EXPECT_EQ(std::tuple(c.decoder.rope.factor, c.decoder.rope.original_context), std::tuple(4, 32768));
  EXPECT_EQ(c.decoder.rope.truncate, RopeScaling::Truncate::kYes);
}

TEST(Qwen3Moe, RefusesByKey) {
  const auto only = [](const std::string& key, const std::string& wanted, const std::string& found) {
    return "config.json: " + key + ": wanted " + wanted +
           ", the only value that Qwen3-MoE models have, found " + found;
  };
  EXPECT_EQ(error_of_qwen3([](Json& c) { c["use_sliding_window"] = true; }),
            only("use_sliding_window", "false", "true"));
  EXPECT_EQ(error_of_qwen3([](Json& c) { c["decoder_sparse_step"] = 49; }),
            "config.json: decoder_sparse_step: wanted at most num_hidden_layers = 48, found 49");
  EXPECT_EQ(error_of_qwen3([](Json& c) {
              c["mlp_only_layers"] = {3, 48};
            }),
            "config.json: mlp_only_layers[1]: wanted an integer from 0 to 47, found 48");
  EXPECT_EQ(
      error_of_qwen3([](Json& c) { c["decoder_sparse_step"] = 30, c["mlp_only_layers"] = {29}; }),
      "config.json: mlp_only_layers: wanted a list that leaves at least one MoE layer, found an array of 1");
  EXPECT_EQ(error_of_qwen3([](Json& c) { c["mlp_only_layers"] = {3}, c.erase("intermediate_size"); }),
            "config.json: intermediate_size: wanted a value, found no such key");
  EXPECT_EQ(error_of_qwen3([](Json& c) { c["hidden_act"] = "gelu"; }),
            only("hidden_act", "\"silu\"", "\"gelu\""));
  EXPECT_EQ(error_of_qwen3([](Json& c) {
              c["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
            }),
            only("rope_scaling.type", "\"yarn\"", "\"linear\""));
  EXPECT_EQ(error_of_qwen3([](Json& c) { c["num_experts_per_tok"] = 129; }),
            "config.json: num_experts_per_tok: wanted at most num_experts = 128, found 129");
  EXPECT_EQ(error_of_qwen3([](Json& c) { c["num_local_experts"] = 64; }),
            "config.json: num_local_experts: wanted num_experts = 128, found 64");
  EXPECT_EQ(error_of_qwen3([](Json& c) { c["num_key_value_heads"] = 5; }),
            "config.json: num_attention_heads: wanted a multiple of num_key_value_heads = 5, found 32");
  EXPECT_EQ(error_of_qwen3([](Json& c) { c.erase("moe_intermediate_size"); }),
            "config.json: moe_intermediate_size: wanted a value, found no such key");
  EXPECT_EQ(
      error_of_qwen3([](Json& c) { c["layer_types"] = {"sliding_attention"}; }),
      "config.json: layer_types[0]: wanted full_attention, the only value that Qwen3-MoE layers have, found "
      "\"sliding_attention\"");
  EXPECT_EQ(
      error_of_qwen3([](Json& c) {
        c["quantization_config"] = {{"quant_method", "gptq"}};
      }),
      "config.json: quantization_config.quant_method: wanted fp8, mxfp8, compressed-tensors, modelopt or "
      "quark, found \"gptq\"");
  const auto read = changed([](Json& c) { c["dual_chunk_attention_config"] = {{"chunk_size", 1}}; });
  EXPECT_EQ(read.status().code, Code::kUnsupported);
  EXPECT_NE(read.status().message.find("dual_chunk_attention_config: wanted no such key"), std::string::npos)
      << read.status().message;
}

// Routers of this family have no bias that could implement Zipf routing.
TEST(Qwen3Moe, RandomWeightsNeedOnlyTheConfig) {
  const auto device = cpu::open_device({.threads = 2}).value();
  const std::string directory = test_data("qwen3_moe/renormalized");
  const auto model = LoadedModel::load(*device, directory, {.format = LoadFormat::kDummy});
  ASSERT_TRUE(model.ok()) << model.status().message;
  EXPECT_TRUE(model.value()->weights()(0, "attention.q_norm").present());
  const auto zipf =
      LoadedModel::load(*device, directory, {.format = LoadFormat::kDummy, .routing = Routing::kZipf});
  EXPECT_EQ(zipf.status().message,
            "routing zipf: wanted a model whose routers have biases, found Qwen3MoeForCausalLM");
}

}  // namespace sluice::test
