#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "models/family.h"

namespace sluice::test {
namespace {

const std::string kReal = std::string(SLUICE_SOURCE_DIR) + "/tests/data/gpt-oss-20b";

// A directory with the published config.json and one change.
class Changed {
 public:
  explicit Changed(const std::function<void(Json&)>& change) {
    Json config = read_json(kReal + "/config.json", 1 << 20).value();
    change(config);
    path_ = std::filesystem::path(testing::TempDir()) / ("sluice_changed_config_" + std::to_string(getpid()));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
    std::ofstream(path_ / "config.json") << config.dump();
  }
  ~Changed() { std::filesystem::remove_all(path_); }
  void add(const std::string& name, const std::string& text) { std::ofstream(path_ / name) << text; }
  Result<ModelConfig> read() const { return read_model_config(path_.string()); }

 private:
  std::filesystem::path path_;
};

std::string error_of(const std::function<void(Json&)>& change) {
  const auto read = Changed(change).read();
  EXPECT_FALSE(read.ok());
  const std::string& message = read.status().message;
  const size_t at = message.find("config.json: ");
  return at == std::string::npos ? message : message.substr(at);
}

}  // namespace

TEST(GptOss, ReadsTheRealConfig) {
  const auto read = read_model_config(kReal);
  ASSERT_TRUE(read.ok()) << read.status().message;
  const ModelConfig& c = read.value();
  const DecoderConfig& d = c.decoder;
  EXPECT_EQ(c.architecture, "GptOssForCausalLM");
  EXPECT_EQ(c.context, 131072);
  EXPECT_EQ(c.stop_tokens, std::vector<int32_t>{200002});
  EXPECT_EQ(d.vocab, 201088);
  ASSERT_EQ(d.layers.size(), 24u);
  EXPECT_EQ(d.moe_layers().size(), 24u);
  EXPECT_EQ(d.layers[0].attention.window, 128);
  EXPECT_EQ(d.layers[1].attention.window, 0);
  EXPECT_EQ(d.layers[22].attention.window, 128);
  const AttentionConfig& a = d.layers[0].attention;
  EXPECT_EQ(std::tuple(a.heads, a.kv_heads, a.scale), std::tuple(64, 8, 0.125));
  const MoeConfig& moe = d.moe();
  EXPECT_EQ(moe.experts, 32);
  EXPECT_EQ(moe.top_k, 4);
  EXPECT_DOUBLE_EQ(moe.limit, 7);
  EXPECT_DOUBLE_EQ(moe.alpha, 1.702);
  EXPECT_TRUE(moe.residual && moe.up_bias && moe.down_bias && moe.router_bias);
  EXPECT_DOUBLE_EQ(d.rope.factor, 32);
  EXPECT_EQ(d.rope.truncate, RopeScaling::Truncate::kNo);
}

TEST(GptOss, ListsEveryTensorInBothNamings) {
  const ModelConfig config = read_model_config(kReal).value();
  const Family& family = *families().front();
  // Per layer: two norms, eight tensors of attention and its sinks, the router and its bias, six tensors of
  // the experts.
  EXPECT_EQ(family.tensors(config, MoeNaming::kGptOss).size(), 3u + 24 * (2 + 9 + 2 + 6));
  EXPECT_EQ(family.tensors(config, MoeNaming::kGptOssOriginal).size(), 3u + 24 * (2 + 5 + 2 + 6));
  int64_t bytes = 0;
  for (const TensorSpec& t : family.tensors(config, MoeNaming::kGptOss)) {
    bytes += *stored_bytes(t.type, t.shape);
  }
  EXPECT_EQ(bytes, 13761264768);  // metadata.total_size of the published index
}

TEST(GptOss, TransformersFiveWritesRopeParameters) {
  const auto read = Changed([](Json& c) {
                      c["rope_parameters"] = c["rope_scaling"];
                      c["rope_parameters"]["rope_theta"] = c["rope_theta"];
                      c.erase("rope_scaling"), c.erase("rope_theta");
                    }).read();
  ASSERT_TRUE(read.ok()) << read.status().message;
  EXPECT_DOUBLE_EQ(read.value().decoder.rope.theta, 150000);
  EXPECT_DOUBLE_EQ(read.value().decoder.rope.factor, 32);
}

// As in transformers: the published model's scaling if the key is missing, none if the type is "default";
// values inside rope_scaling override values beside it.
TEST(GptOss, MissingAndPartialRopeScaling) {
  const auto rope = [](const std::function<void(Json&)>& change) {
    const auto read = Changed(change).read();
    EXPECT_TRUE(read.ok()) << read.status().message;
    return read.ok() ? read.value().decoder.rope : RopeScaling{};
  };
  const RopeScaling absent = rope([](Json& c) { c.erase("rope_scaling"), c.erase("rope_theta"); });
  EXPECT_EQ(std::tuple(absent.theta, absent.factor, absent.original_context), std::tuple(150000, 32, 4096));
  EXPECT_DOUBLE_EQ(rope([](Json& c) { c["rope_scaling"] = {{"rope_type", "default"}}; }).factor, 1);
  const RopeScaling inside = rope([](Json& c) {
    c["rope_scaling"]["rope_theta"] = 5000, c["rope_scaling"]["factor"] = nullptr;
    c["rope_scaling"].erase("original_max_position_embeddings"), c["original_max_position_embeddings"] = 1024;
    c["rope_parameters"] = {{"rope_type", "default"}};
  });
  EXPECT_EQ(std::tuple(inside.theta, inside.factor, inside.original_context), std::tuple(5000, 1, 1024));
  const RopeScaling weighed =
      rope([](Json& c) { c["rope_scaling"]["mscale"] = 2, c["rope_scaling"]["mscale_all_dim"] = 1; });
  const double ln = std::log(32);
  EXPECT_DOUBLE_EQ(weighed.attention_factor, (0.2 * ln + 1) / (0.1 * ln + 1));
}

TEST(GptOss, AnOutputLayerCanBeTheEmbedding) {
  const auto read = Changed([](Json& c) { c["tie_word_embeddings"] = true; }).read();
  ASSERT_TRUE(read.ok()) << read.status().message;
  const auto tensors = families().front()->tensors(read.value(), MoeNaming::kGptOss);
  EXPECT_EQ(tensors.back().weight, "lm_head");
  EXPECT_EQ(tensors.back().name, "model.embed_tokens.weight");
}

TEST(GptOss, GenerationConfigOverridesTheConfig) {
  Changed with([](Json&) {});
  EXPECT_DOUBLE_EQ(with.read().value().generation.temperature, 1);
  with.add("generation_config.json", R"({"do_sample": false, "temperature": 0.7})");
  EXPECT_DOUBLE_EQ(with.read().value().generation.temperature, 0);
  with.add("generation_config.json", R"({"temperature": 0.7, "top_p": 0.9, "top_k": 40})");
  EXPECT_DOUBLE_EQ(with.read().value().generation.temperature, 0.7);
  EXPECT_DOUBLE_EQ(with.read().value().generation.top_p, 0.9);
  EXPECT_EQ(with.read().value().generation.top_k, 40);
  with.add("generation_config.json", R"({"eos_token_id": [200002, 199999, 200012]})");
  EXPECT_EQ(with.read().value().stop_tokens, (std::vector<int32_t>{200002, 199999, 200012}));
  with.add("generation_config.json", R"({"eos_token_id": [201088]})");
  EXPECT_NE(
      with.read().status().message.find("eos_token_id[0]: wanted an integer from 0 to 201087, found 201088"),
      std::string::npos);
  with.add("generation_config.json", R"({"eos_token_id": 199999})");
  EXPECT_EQ(with.read().value().stop_tokens, std::vector<int32_t>{199999});
  with.add("generation_config.json", R"({"eos_token_id": null, "max_new_tokens": 7, "max_length": 900})");
  EXPECT_EQ(with.read().value().stop_tokens, std::vector<int32_t>{200002});
  EXPECT_EQ(with.read().value().generation.max_new_tokens, 7);
  EXPECT_EQ(with.read().value().generation.max_length, 900);
  with.add("generation_config.json", "{");
  EXPECT_NE(with.read().status().message.find("generation_config.json: wanted JSON"), std::string::npos);
}

TEST(GptOss, RefusesByKey) {
  EXPECT_EQ(error_of([](Json& c) { c.erase("hidden_size"); }),
            "config.json: hidden_size: wanted a value, found no such key");
  EXPECT_EQ(error_of([](Json& c) { c["hidden_size"] = 2881; }),
            "config.json: hidden_size: wanted a multiple of 32 (MXFP4 blocks), found 2881");
  EXPECT_EQ(error_of([](Json& c) { c["num_hidden_layers"] = "24"; }),
            "config.json: num_hidden_layers: wanted an integer from 1 to 1000, found \"24\"");
  EXPECT_EQ(error_of([](Json& c) { c["layer_types"].erase(0); }),
            "config.json: layer_types: wanted an array of num_hidden_layers = 24, found an array of 23");
  EXPECT_EQ(error_of([](Json& c) { c["layer_types"][3] = "linear"; }),
            "config.json: layer_types[3]: wanted sliding_attention or full_attention, found \"linear\"");
  EXPECT_EQ(error_of([](Json& c) { c["num_experts_per_tok"] = 33; }),
            "config.json: num_experts_per_tok: wanted at most num_local_experts = 32, found 33");
  EXPECT_EQ(error_of([](Json& c) { c["rope_scaling"]["rope_type"] = "linear"; }),
            "config.json: rope_scaling.rope_type: wanted \"yarn\", the only value that gpt-oss models have, "
            "found \"linear\"");
  EXPECT_EQ(error_of([](Json& c) { c["rope_scaling"]["factor"] = 0.5; }),
            "config.json: rope_scaling.factor: wanted a number from 1 to 1e+06, found 0.5");
}

// Transforms of weights need transforms of activations, in every family.
TEST(GptOss, RefusesTransforms) {
  const auto with = [](Json groups) {
    return [groups](Json& c) { c["quantization_config"]["transform_config"] = {{"config_groups", groups}}; };
  };
  EXPECT_TRUE(Changed(with(Json::object())).read().ok());
  EXPECT_EQ(error_of(with({{"R4", {{"type", "hadamard"}}}})),
            "config.json: quantization_config.transform_config: wanted no config_groups (no transforms), "
            "found an object");
}

TEST(Families, AnUnknownArchitectureNamesTheKnownOnes) {
  const std::string error = error_of([](Json& c) { c["architectures"][0] = "GptOsForCausalLM"; });
  EXPECT_NE(error.find("GptOsForCausalLM"), std::string::npos) << error;
  EXPECT_NE(error.find("GptOssForCausalLM"), std::string::npos) << error;
  EXPECT_EQ(Changed([](Json& c) { c["architectures"][0] = "Mamba"; }).read().status().code,
            Code::kUnsupported);
  EXPECT_EQ(error_of([](Json& c) { c["architectures"] = Json::array(); }),
            "config.json: architectures: wanted one architecture, found an array of 0");
  EXPECT_EQ(read_model_config("/nowhere").status().code, Code::kIo);
}

}  // namespace sluice::test
