// Tensors of EAGLE3 heads: names, tensors shared with the model, and the messages of tensors that are
// rejected.
#include <algorithm>
#include <cstring>
#include <filesystem>

#include "backends/cpu/device.h"
#include "harness/eagle3_head.h"

namespace sluice::test {
namespace {

using Tensors = ChangedHead::Tensors;

StoredTensor& named(Tensors& tensors, const std::string& name) {
  for (StoredTensor& t : tensors)
    if (t.what.name == name) return t;
  ADD_FAILURE() << name;
  return tensors.front();
}

void drop(Tensors& tensors, const std::string& name) {
  EXPECT_EQ(std::erase_if(tensors, [&](const StoredTensor& t) { return t.what.name == name; }), 1u) << name;
}

// A tensor of zeros.
StoredTensor zeros(const std::string& name, StoredType type, std::vector<int64_t> shape) {
  StoredTensor out{{name, type, shape}, {}};
  out.bytes.resize(static_cast<size_t>(*stored_bytes(type, shape)));
  return out;
}

void set_distance(Tensors& tensors, int64_t element, int64_t value) {
  std::memcpy(named(tensors, "d2t").bytes.data() + 8 * element, &value, 8);
}

std::vector<std::byte> bytes_of_weight(const LoadedDraft& head, const std::string& name) {
  const Tensor t = head.weights()(-1, name);
  const auto* const data = static_cast<const std::byte*>(t.data);
  return {data, data + bytes_of(t.dtype, elements_of(t))};
}

class Eagle3Load : public testing::Test {
 protected:
  std::unique_ptr<LoadedDraft> load(const ChangedHead& head, const DraftLoadOptions& options = {}) {
    auto made = head.load(*device, *model, options);
    EXPECT_TRUE(made.ok()) << made.status().message;
    return std::move(made).value();
  }
  std::string error(const std::string& head, const std::function<void(Json&, Tensors&)>& change) {
    return ChangedHead(head, change).error(*device, *model);
  }
  // Checks that the head has every weight that its steps read.
  void expect_whole(const LoadedDraft& head) {
    for (const HeldSlot& slot : draft_layer_weights(head.config())) {
      const Status status = check_slot(slot.spec, head.weights()(slot.layer, slot.name), Backend::kCpu, 1);
      EXPECT_TRUE(status.ok()) << slot.name << ": " << status.message;
    }
  }

  std::unique_ptr<Device> device = cpu::open_device({.threads = 2}).value();
  Eagle3Model model{*device};
};

}  // namespace

TEST_F(Eagle3Load, HeadsHoldTheWeightsThatTheirStepsRead) {
  for (const char* name : kEagle3Heads) {
    SCOPED_TRACE(name);
    const ChangedHead files(name);
    for (const DType x : {DType::kBF16, DType::kF32}) {
      const auto head = load(files, {.x = x});
      expect_whole(*head);
      EXPECT_EQ(head->config().x, x);
      EXPECT_EQ(head->config().mlp.x, x);
    }
    const auto dummy = load(files, {.format = LoadFormat::kDummy});
    expect_whole(*dummy);
  }
}

TEST_F(Eagle3Load, DraftTokensAreTheModelsByTheirDistances) {
  const ChangedHead files("plain", [](Json&, Tensors& t) {
    set_distance(t, 0, 95), set_distance(t, 7, -7), set_distance(t, 39, 56);
  });
  const auto head = load(files);
  EXPECT_TRUE(head->config().maps_tokens);
  const auto file = Checkpoint::open(files.path());
  const CheckpointTensor& d2t = *file.value()->find("d2t").value();
  const Tensor token_of = head->weights()(-1, "token_of");
  ASSERT_EQ(elements_of(token_of), 40);
  for (int64_t j = 0; j < 40; ++j) {
    int64_t distance = 0;
    std::memcpy(&distance, d2t.data + 8 * j, 8);
    EXPECT_EQ(token_of.as<int32_t>()[j], j + distance) << j;
  }
  EXPECT_EQ(token_of.as<int32_t>()[0], 95);
  EXPECT_EQ(token_of.as<int32_t>()[7], 0);
  EXPECT_EQ(token_of.as<int32_t>()[39], 95);
  EXPECT_FALSE(load(ChangedHead("short"))->config().maps_tokens);
}

TEST_F(Eagle3Load, AHeadSharesTheEmbeddingAndTheOutputLayerThatItLacks) {
  const auto own = load(ChangedHead("short"));
  const auto none = load(ChangedHead(
      "short", [](Json&, Tensors& t) { drop(t, "embed_tokens.weight"), drop(t, "lm_head.weight"); }));
  expect_whole(*none);
  for (const char* name : {"embedding", "lm_head"}) {
    EXPECT_EQ(none->weights()(-1, name).data, model->weights()(-1, name).data) << name;
    EXPECT_NE(own->weights()(-1, name).data, model->weights()(-1, name).data) << name;
  }
  const auto bytes = [&](const char* name) {
    const Tensor t = own->weights()(-1, name);
    return bytes_of(t.dtype, elements_of(t));
  };
  EXPECT_EQ(own->weight_bytes() - none->weight_bytes(), bytes("embedding") + bytes("lm_head"));
  // A head with its own vocabulary still shares the embedding.
  const auto mapped = load(ChangedHead("plain", [](Json&, Tensors& t) { drop(t, "embed_tokens.weight"); }));
  EXPECT_EQ(mapped->weights()(-1, "embedding").data, model->weights()(-1, "embedding").data);
  EXPECT_NE(mapped->weights()(-1, "lm_head").data, model->weights()(-1, "lm_head").data);
}

TEST_F(Eagle3Load, NamesOfEveryToolAreTheSameWeights) {
  const auto renamed = [&](const std::string& layer, const std::string& outside) {
    return load(ChangedHead("fc_norm", [&](Json&, Tensors& tensors) {
      for (StoredTensor& t : tensors) {
        std::string& name = t.what.name;
        const bool in_layer = name.starts_with("midlayer.");
        name = in_layer ? layer + name.substr(9) : outside + name;
      }
    }));
  };
  const auto want = load(ChangedHead("fc_norm"));
  const auto expect_same = [&](const LoadedDraft& head) {
    for (const HeldSlot& slot : draft_layer_weights(want->config()))
      EXPECT_EQ(bytes_of_weight(head, slot.name), bytes_of_weight(*want, slot.name)) << slot.name;
  };
  for (const char* layer : {"layers.0.", "model.midlayer.", "model.layers.0."})
    for (const char* outside : {"", "model."}) expect_same(*renamed(layer, outside));
  expect_same(*load(ChangedHead("fc_norm", [](Json& config, Tensors& t) {
    config["use_aux_norm"] = true, config.erase("fc_norm");
    named(t, "fc_norm.0.weight").what.name = "aux_norm_low.weight";
    named(t, "fc_norm.1.weight").what.name = "aux_norm_mid.weight";
    named(t, "fc_norm.2.weight").what.name = "aux_norm_high.weight";
  })));
}

TEST_F(Eagle3Load, QueriesKeysAndValuesAreOneMatrixOfTwiceTheWidth) {
  const auto head = load(ChangedHead("fc_norm"));
  EXPECT_EQ(head->config().attention.input, 128);
  const Tensor bias = head->weights()(-1, "attention.qkv_bias");
  ASSERT_EQ(elements_of(bias), 128);
  const auto file = Checkpoint::open(eagle3_data("fc_norm") + "/checkpoint");
  int64_t at = 0;
  for (const auto& [name, rows] : {std::pair{"q", 64}, {"k", 32}, {"v", 32}}) {
    const CheckpointTensor& t =
        *file.value()->find(std::string("midlayer.self_attn.") + name + "_proj.bias").value();
    EXPECT_EQ(std::memcmp(bias.as<uint16_t>() + at, t.data, static_cast<size_t>(2 * rows)), 0) << name;
    at += rows;
  }
}

TEST_F(Eagle3Load, RandomWeightsNeedOnlyTheConfig) {
  const ChangedHead files("norm_before_fc");
  std::filesystem::remove(files.path() + "/model.safetensors");
  const auto a = load(files, {.format = LoadFormat::kDummy, .seed = 3}),
             b = load(files, {.format = LoadFormat::kDummy, .seed = 3}),
             c = load(files, {.format = LoadFormat::kDummy, .seed = 4});
  EXPECT_EQ(bytes_of_weight(*a, "fc"), bytes_of_weight(*b, "fc"));
  EXPECT_NE(bytes_of_weight(*a, "fc"), bytes_of_weight(*c, "fc"));
  EXPECT_EQ(a->weights()(-1, "embedding").data, model->weights()(-1, "embedding").data);
  const Tensor token_of = a->weights()(-1, "token_of");
  for (int64_t j = 0; j < 40; ++j) EXPECT_EQ(token_of.as<int32_t>()[j], j * 96 / 40) << j;
  // A norm's weights are close to one.
  const Tensor norm = a->weights()(-1, "feature_norm");
  for (int64_t i = 0; i < 192; ++i) EXPECT_NEAR(to_float(norm.as<BF16>()[i]), 1, 0.9) << i;
}

TEST_F(Eagle3Load, TheAuthorsRecommendedDraftCountIsRead) {
  EXPECT_EQ(load(ChangedHead("plain"))->speculative_tokens(), std::nullopt);
  const auto head = load(ChangedHead("plain", [](Json& config, Tensors&) {
    config["speculators_config"]["proposal_methods"] = Json::array({{{"speculative_tokens", 5}}});
  }));
  EXPECT_EQ(head->speculative_tokens(), 5);
}

TEST_F(Eagle3Load, MissingAndWrongTensorsAreNamed) {
  const auto without = [&](const std::string& head, const std::string& name) {
    return error(head, [&](Json&, Tensors& t) { drop(t, name); });
  };
  for (const char* name : {"fc.weight", "norm.weight", "lm_head.weight", "midlayer.hidden_norm.weight",
                           "midlayer.self_attn.k_proj.weight", "midlayer.mlp.up_proj.weight"})
    EXPECT_NE(without("plain", name).find("wanted tensor '" + std::string(name) + "', found no such name"),
              std::string::npos)
        << without("plain", name);
  for (const char* name : {"fc_norm.1.weight", "midlayer.self_attn.o_proj.bias"})
    EXPECT_NE(without("fc_norm", name).find("'" + std::string(name) + "'"), std::string::npos) << name;
  EXPECT_NE(without("norm_before_fc", "input_norm.weight").find("'input_norm.weight'"), std::string::npos);
  EXPECT_EQ(without("plain", "d2t"),
            ": d2t: wanted I64[40], as draft_vocab_size is smaller than vocab_size, found no such tensor");
  EXPECT_EQ(error("plain", [](Json&, Tensors& t) { named(t, "d2t") = zeros("d2t", StoredType::kI32, {40}); }),
            "model.safetensors: d2t: wanted I64[40], found I32[40]");
  EXPECT_EQ(error("plain", [](Json& c, Tensors&) { c["draft_vocab_size"] = 48; }),
            "model.safetensors: lm_head.weight: wanted BF16[48, 64], found BF16[40, 64]");
  EXPECT_EQ(
      error("plain",
            [](Json&, Tensors& t) {
              named(t, "embed_tokens.weight") = zeros("embed_tokens.weight", StoredType::kBF16, {96, 32});
            }),
      "model.safetensors: embed_tokens.weight: wanted BF16[96, 64], found BF16[96, 32]");
  EXPECT_EQ(error("plain",
                  [](Json& c, Tensors&) {
                    c["eagle_aux_hidden_state_layer_ids"] = {1, 3, 4, 5};
                  }),
            "model.safetensors: fc.weight: wanted BF16[64, 256], found BF16[64, 192]");
  EXPECT_EQ(error("plain",
                  [](Json&, Tensors& t) {
                    for (StoredTensor& s : t) s.what.name = "other." + s.what.name;
                  }),
            ": wanted a layer named midlayer or layers.0, found none among 16 tensors");
  // A head of another width cannot share the model's embedding.
  EXPECT_NE(error("plain",
                  [](Json& c, Tensors& t) {
                    c["hidden_size"] = 32, c["target_hidden_size"] = 64;
                    drop(t, "embed_tokens.weight");
                  })
                .find("wanted tensor 'embed_tokens.weight'"),
            std::string::npos);
}

TEST_F(Eagle3Load, ADraftTokenOutsideTheModelsVocabularyIsNamed) {
  for (const auto& [element, value, wanted] : {std::tuple{5, int64_t{91}, "from -5 to 90"},
                                               {5, -6, "from -5 to 90"},
                                               {39, int64_t{1} << 40, "from -39 to 56"}})
    EXPECT_EQ(error("plain", [&](Json&, Tensors& t) { set_distance(t, element, value); }),
              "model.safetensors: d2t: wanted an integer " + std::string(wanted) + " at element " +
                  std::to_string(element) + ", found " + std::to_string(value));
}

TEST_F(Eagle3Load, TensorsOfOtherHeadsAreRefused) {
  const auto with = [&](const std::string& name) {
    return error("plain", [&](Json&, Tensors& t) { t.push_back(zeros(name, StoredType::kBF16, {64})); });
  };
  for (const char* name :
       {"input_norm.weight", "fc_norm.0.weight", "layers.1.mlp.up_proj.weight",
        "midlayer.self_attn.q_norm.weight", "midlayer.self_attn.q_proj.bias", "base_model.lora_A.weight"})
    EXPECT_EQ(with(name), "model.safetensors: " + std::string(name) +
                              ": wanted only the tensors that config.json implies, found another");
  EXPECT_EQ(with("mask_hidden"),
            "model.safetensors: mask_hidden: wanted an EAGLE3 head, found a tensor of P-EAGLE, which is not "
            "supported");
  for (const char* name : {"verifier_norm.weight", "midlayer.self_attn.rotary_emb.inv_freq"})
    EXPECT_EQ(with(name), "");
  EXPECT_NE(error("norm_before_fc", [](Json& c, Tensors&) { c["norm_before_fc"] = false; })
                .find("input_norm.weight"),
            std::string::npos);
}

TEST_F(Eagle3Load, DamagedFilesAreRefused) {
  const ChangedHead files("plain");
  const std::string path = files.path() + "/model.safetensors";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_NE(files.error(*device, *model).find("model.safetensors: "), std::string::npos);
  std::filesystem::remove(path);
  EXPECT_EQ(
      files.error(*device, *model),
      ": wanted model.safetensors.index.json, model.safetensors or exactly one *.safetensors, found none");
  std::filesystem::remove(files.path() + "/config.json");
  EXPECT_NE(files.error(*device, *model).find("config.json"), std::string::npos);
  EXPECT_EQ(error("plain",
                  [](Json&, Tensors& t) {
                    for (std::byte& b : named(t, "fc.weight").bytes) b = std::byte{0xFF};
                  }),
            "model.safetensors: fc.weight: wanted finite numbers, found NaN at element 0");
}

}  // namespace sluice::test
