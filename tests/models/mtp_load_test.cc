// The draft layer's config.json, its tensors and its options: what is read, and what is refused in which words.
#include <filesystem>
#include <fstream>
#include <functional>

#include "harness/devices.h"
#include "harness/far_device.h"
#include "harness/mtp_draft.h"
#include "weights/files.h"

namespace sluice::test {
namespace {

// The published config.json, as far as it says something about this layer.
Json published() {
  return Json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "first_k_dense_replace": 3,
    "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
    "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
    "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false,
    "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280})");
}

std::string error_of_mtp(const std::function<void(Json&)>& change) {
  Json config = published();
  change(config);
  const auto read = read_mtp_config(JsonAt(config, "config.json"));
  return read.ok() ? "" : read.status().message;
}

// The recorded checkpoint, changed before it is written.
class ChangedMtp {
 public:
  explicit ChangedMtp(const std::function<void(std::vector<StoredTensor>&)>& change) {
    const auto from = Checkpoint::open(kMtp);
    EXPECT_TRUE(from.ok()) << from.status().message;
    std::vector<StoredTensor> tensors;
    for (const CheckpointTensor& t : from.value()->tensors())
      tensors.push_back({{t.name, t.type, t.shape}, {t.data, t.data + t.bytes}});
    change(tensors);
    write_tensors(directory_.file("model.safetensors"), tensors);
    std::filesystem::copy_file(kMtp + "/config.json", directory_.file("config.json"));
  }
  const std::string& path() const { return directory_.path(); }
  // Behind the directory.
  std::string error(Device& device) const {
    const auto made = LoadedMtp::load(device, path());
    if (made.ok()) return "";
    const std::string& message = made.status().message;
    const size_t at = message.find(path());
    return at == std::string::npos ? message : message.substr(at + path().size() + 1);
  }

 private:
  TemporaryDirectory directory_;
};

StoredTensor& of_layer_3(std::vector<StoredTensor>& tensors, const std::string& name) {
  for (StoredTensor& t : tensors)
    if (t.what.name == "model.layers.3." + name) return t;
  ADD_FAILURE() << name;
  return tensors.front();
}

class MtpLoad : public testing::Test {
 protected:
  std::string error(const MtpLoadOptions& options) {
    const auto made = LoadedMtp::load(*device, kMtp, options);
    return made.ok() ? "" : made.status().message;
  }
  std::unique_ptr<Device> device = cpu::open_device({.threads = 2}).value();
};

}  // namespace

TEST(MtpConfig, ReadsThePublishedOne) {
  const Json config = published();
  const auto read = read_mtp_config(JsonAt(config, "config.json"));
  ASSERT_TRUE(read.ok()) << read.status().message;
  EXPECT_EQ(read.value().layers, 61);
  EXPECT_EQ(read.value().drafts, 1);
  EXPECT_EQ(read.value().context, 163840);
  const MtpConfig& c = read.value().mtp;
  EXPECT_EQ(c.vocab, 129280);
  EXPECT_EQ(c.hidden, 7168);
  EXPECT_EQ(c.attention.heads, 128);
  EXPECT_EQ(c.attention.q_rank, 1536);
  EXPECT_EQ(c.attention.rank, 512);
  EXPECT_EQ(c.attention.nope, 128);
  EXPECT_EQ(c.attention.rope, 64);
  EXPECT_EQ(c.attention.v_dim, 128);
  // 192^-0.5 (0.1 ln 40 + 1)^2
  EXPECT_NEAR(c.attention.scale, 0.1352337788608801, 1e-12);
  EXPECT_DOUBLE_EQ(c.rope.theta, 10000);
  EXPECT_DOUBLE_EQ(c.rope.factor, 40);
  EXPECT_DOUBLE_EQ(c.rope.attention_factor, 1);
  EXPECT_EQ(c.rope.truncate, RopeScaling::Truncate::kYes);
  // Apart from the stream, the layer of known_moe().
  MoeConfig known = known_moe("deepseek-v3").value();
  EXPECT_EQ(c.moe.method, RoutingMethod::kDeepSeekV3);
  EXPECT_EQ(c.moe.experts, known.experts);
  EXPECT_EQ(c.moe.top_k, known.top_k);
  EXPECT_EQ(c.moe.groups, known.groups);
  EXPECT_EQ(c.moe.topk_groups, known.topk_groups);
  EXPECT_EQ(c.moe.scale, known.scale);
  EXPECT_EQ(c.moe.intermediate, known.intermediate);
  EXPECT_EQ(c.moe.shared_intermediate, known.shared_intermediate);
  EXPECT_TRUE(c.moe.shared_as_slots && known.shared_as_slots);
  EXPECT_TRUE(c.moe.residual && c.moe.correction_bias);
}

TEST(MtpConfig, SharedExpertsThatAreTooManyForSlotsHaveAPathOfTheirOwn) {
  Json config = published();
  for (const auto& [experts, slots] : {std::pair{0, 0}, {1, 1}, {8, 8}, {9, 0}}) {
    config["n_shared_experts"] = experts;
    const auto read = read_mtp_config(JsonAt(config, "config.json"));
    ASSERT_TRUE(read.ok()) << read.status().message;
    EXPECT_EQ(shared_slots(read.value().mtp.moe), slots) << experts;
    EXPECT_EQ(read.value().mtp.moe.shared_intermediate, 2048 * experts);
  }
}

TEST(MtpConfig, TransformersFiveWritesRopeParametersAndPlainOnesNeedNone) {
  Json config = published();
  config["rope_parameters"] = config["rope_scaling"];
  config["rope_parameters"]["rope_type"] = "yarn", config["rope_parameters"]["rope_theta"] = 50000;
  config.erase("rope_scaling"), config.erase("rope_theta");
  const auto read = read_mtp_config(JsonAt(config, "config.json"));
  ASSERT_TRUE(read.ok()) << read.status().message;
  EXPECT_DOUBLE_EQ(read.value().mtp.rope.theta, 50000);
  EXPECT_NEAR(read.value().mtp.attention.scale, 0.1352337788608801, 1e-12);
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 20000}};
  const auto plain = read_mtp_config(JsonAt(config, "config.json"));
  ASSERT_TRUE(plain.ok()) << plain.status().message;
  EXPECT_DOUBLE_EQ(plain.value().mtp.rope.theta, 20000);
  EXPECT_DOUBLE_EQ(plain.value().mtp.rope.factor, 1);
  EXPECT_NEAR(plain.value().mtp.attention.scale, 1 / std::sqrt(192.), 1e-15);
}

TEST(MtpConfig, RefusalsNameTheKeyWhatWasWantedAndWhatWasFound) {
  EXPECT_EQ(error_of_mtp([](Json& c) { c["scoring_func"] = "softmax"; }),
            "config.json: scoring_func: wanted \"sigmoid\", which is all that DeepSeek V3 models have, found "
            "\"softmax\"");
  EXPECT_EQ(error_of_mtp([](Json& c) { c["topk_method"] = "greedy"; }),
            "config.json: topk_method: wanted \"noaux_tc\", which is all that DeepSeek V3 models have, found "
            "\"greedy\"");
  EXPECT_EQ(
      error_of_mtp([](Json& c) { c["norm_topk_prob"] = false; }),
      "config.json: norm_topk_prob: wanted true, which is all that DeepSeek V3 models have, found false");
  EXPECT_EQ(error_of_mtp([](Json& c) { c["architectures"] = {"GptOssForCausalLM"}; }),
            "config.json: architectures: wanted DeepseekV3ForCausalLM, found GptOssForCausalLM");
  EXPECT_EQ(error_of_mtp([](Json& c) { c["num_nextn_predict_layers"] = 0; }),
            "config.json: num_nextn_predict_layers: wanted an integer from 1 to 100, found 0");
  EXPECT_EQ(error_of_mtp([](Json& c) { c["first_k_dense_replace"] = 62; }),
            "config.json: first_k_dense_replace: wanted at most num_hidden_layers = 61: a draft layer has "
            "experts, found 62");
  EXPECT_EQ(error_of_mtp([](Json& c) { c["q_lora_rank"] = nullptr; }),
            "config.json: q_lora_rank: wanted an integer from 1 to 65536, found null");
  EXPECT_EQ(error_of_mtp([](Json& c) { c["qk_rope_head_dim"] = 63; }),
            "config.json: qk_rope_head_dim: wanted an even number (pairs turn together), found 63");
  EXPECT_EQ(error_of_mtp([](Json& c) { c["n_group"] = 7; }),
            "config.json: n_group: wanted a divisor of n_routed_experts = 256, found 7");
  EXPECT_EQ(error_of_mtp([](Json& c) { c["topk_group"] = 9; }),
            "config.json: topk_group: wanted at most n_group = 8, found 9");
  EXPECT_EQ(
      error_of_mtp([](Json& c) { c["num_experts_per_tok"] = 129; }),
      "config.json: num_experts_per_tok: wanted at most the 128 experts of topk_group groups, found 129");
  EXPECT_EQ(error_of_mtp([](Json& c) { c["rope_scaling"]["type"] = "linear"; }),
            "config.json: rope_scaling.type: wanted \"yarn\", which is all that DeepSeek V3 models have, "
            "found \"linear\"");
  EXPECT_EQ(error_of_mtp([](Json&) {}), "");
}

TEST_F(MtpLoad, TensorsThatAreMissingOrWrongAreNamed) {
  const auto without = [&](const std::string& name) {
    return ChangedMtp([&](auto& tensors) {
             std::erase_if(tensors,
                           [&](const StoredTensor& t) { return t.what.name == "model.layers.3." + name; });
           })
        .error(*device);
  };
  for (const char* name :
       {"eh_proj.weight", "enorm.weight", "self_attn.kv_b_proj.weight", "shared_head.norm.weight",
        "shared_head.head.weight", "mlp.gate.weight", "mlp.gate.e_score_correction_bias",
        "mlp.experts.5.up_proj.weight", "mlp.shared_experts.down_proj.weight"})
    EXPECT_NE(without(name).find(std::string("model.layers.3.") + name), std::string::npos) << without(name);
  EXPECT_EQ(ChangedMtp([](auto& tensors) {
              of_layer_3(tensors, "eh_proj.weight").what.shape = {128, 64};
            }).error(*device),
            "model.safetensors: model.layers.3.eh_proj.weight: wanted BF16[64, 128], found BF16[128, 64]");
  EXPECT_EQ(
      ChangedMtp([](auto& tensors) {
        of_layer_3(tensors, "self_attn.q_a_proj.weight").what.type = StoredType::kI16;
      }).error(*device),
      "model.safetensors: model.layers.3.self_attn.q_a_proj.weight: wanted BF16[32, 64], found I16[32, 64]");
  EXPECT_EQ(ChangedMtp([](auto&) {}).error(*device), "");
}

TEST_F(MtpLoad, ACheckpointWithoutItsOwnEmbeddingAndHeadHasTheMainModels) {
  const ChangedMtp renamed([](auto& tensors) {
    of_layer_3(tensors, "embed_tokens.weight").what.name = "model.embed_tokens.weight";
    of_layer_3(tensors, "shared_head.head.weight").what.name = "lm_head.weight";
  });
  const auto own = LoadedMtp::load(*device, kMtp), main = LoadedMtp::load(*device, renamed.path());
  ASSERT_TRUE(own.ok() && main.ok()) << main.status().message;
  const RecordedMtp r = recorded_mtp();
  const auto want = MtpDraft(*device, *own.value()).step(r, {{0, 0, 24}});
  EXPECT_EQ(MtpDraft(*device, *main.value()).step(r, {{0, 0, 24}}).logits, want.logits);
  // And a main model in memory shares its own.
  const Tensor embedding = own.value()->weights()(-1, "embedding"),
               head = own.value()->weights()(-1, "lm_head");
  const auto shared = LoadedMtp::load(*device, kMtp, {.embedding = embedding, .head = head});
  ASSERT_TRUE(shared.ok()) << shared.status().message;
  EXPECT_EQ(shared.value()->weights()(-1, "lm_head").data, head.data);
  EXPECT_EQ(MtpDraft(*device, *shared.value()).step(r, {{0, 0, 24}}).logits, want.logits);
  EXPECT_EQ(own.value()->weight_bytes() - shared.value()->weight_bytes(),
            bytes_of(DType::kBF16, 128 * 64) + elements_of(head));
  EXPECT_EQ(error({.embedding = embedding}),
            "embedding and head: wanted both of the main model's or none, found one");
}

TEST_F(MtpLoad, TheDraftFollowsTheMainModelUnlessAsked) {
  FarDevice far;  // one of another backend
  const auto of = [&](const MtpLoadOptions& options) {
    auto made = LoadedMtp::load(*device, kMtp, options);
    EXPECT_TRUE(made.ok()) << made.status().message;
    return std::move(made).value();
  };
  EXPECT_EQ(of({})->experts(), nullptr);
  EXPECT_EQ(of({.experts = &far})->experts(), &far);
  EXPECT_EQ(of({.experts = &far, .speculative_moe_backend = "cpu"})->experts(), nullptr);
  EXPECT_EQ(of({.experts = &far, .speculative_moe_backend = "cuda"})->experts(), &far);
  EXPECT_EQ(of({.speculative_moe_backend = "cuda", .spare = &far})->experts(), &far);
  EXPECT_EQ(of({.speculative_moe_backend = "cuda", .spare = &far})->config().moe.layout,
            WeightLayout::kFragments);
  EXPECT_EQ(of({})->config().moe.logits, DType::kF32);
  EXPECT_EQ(of({.router_logits = DType::kBF16})->config().moe.logits, DType::kBF16);
  EXPECT_EQ(of({.router_logits = DType::kBF16, .speculative_router_dtype = "float32"})->config().moe.logits,
            DType::kF32);
  // The type is computed, not only noted: bf16 scores move the weights of experts.
  const RecordedMtp r = recorded_mtp();
  const auto exact = of({.x = DType::kF32});
  const auto rounded = of({.x = DType::kF32, .speculative_router_dtype = "bfloat16"});
  EXPECT_NE(MtpDraft(*device, *exact).step(r, {{0, 0, 24}}).hidden,
            MtpDraft(*device, *rounded).step(r, {{0, 0, 24}}).hidden);
}

TEST_F(MtpLoad, OptionsThatCannotBeAreRefused) {
  EXPECT_EQ(error({.speculative_moe_backend = "trtllm"}),
            "speculative_moe_backend: wanted cpu or cuda, found 'trtllm'");
  EXPECT_EQ(error({.speculative_moe_backend = "cuda"}),
            "speculative_moe_backend: wanted the backend of an open device (" + text(device->info()) +
                "), found 'cuda'");
  EXPECT_EQ(error({.speculative_router_dtype = "float16"}),
            "speculative_router_dtype: wanted float32 or bfloat16, found 'float16'");
  EXPECT_EQ(error({.draft = 1}),
            "draft: wanted one of the model's num_nextn_predict_layers = 1 layers, from 0, found 1");
}

}  // namespace sluice::test
