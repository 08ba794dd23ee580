// The draft heads of tools/parity/record_eagle3.py, and a model that they can draft for.
#pragma once
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harness/test_data.h"
#include "models/draft.h"
#include "weights/files.h"

namespace sluice::test {

constexpr const char* kEagle3Heads[] = {"plain", "norm_before_fc", "fc_norm", "short"};
inline std::string eagle3_data(const std::string& head) { return test_data("eagle3/" + head); }

// A model of random weights with the width and the vocabulary of the recorded heads.
class Eagle3Model {
 public:
  explicit Eagle3Model(Device& device) {
    std::ofstream(directory_.file("config.json")) << R"({
      "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": true, "hidden_act": "silu",
      "tie_word_embeddings": false, "vocab_size": 96, "hidden_size": 64, "intermediate_size": 64,
      "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
      "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32, "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-05, "swiglu_limit": 7.0, "eos_token_id": 95,
      "quantization_config": {"quant_method": "mxfp4"}})";
    auto made = LoadedModel::load(device, directory_.path(), {.format = LoadFormat::kDummy});
    EXPECT_TRUE(made.ok()) << made.status().message;
    loaded_ = std::move(made).value();
  }
  const LoadedModel& operator*() const { return *loaded_; }
  const LoadedModel* operator->() const { return loaded_.get(); }

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<LoadedModel> loaded_;
};

// A recorded head, modified before it is written.
class ChangedHead {
 public:
  using Tensors = std::vector<StoredTensor>;
  explicit ChangedHead(const std::string& head, const std::function<void(Json&, Tensors&)>& change = {}) {
    const std::string from = eagle3_data(head) + "/checkpoint";
    const auto file = Checkpoint::open(from);
    EXPECT_TRUE(file.ok()) << file.status().message;
    Tensors tensors;
    for (const CheckpointTensor& t : file.value()->tensors())
      tensors.push_back({{t.name, t.type, t.shape}, {t.data, t.data + t.bytes}});
    Json config = read_json(from + "/config.json", 1 << 20).value();
    if (change) change(config, tensors);
    write_tensors(directory_.file("model.safetensors"), tensors);
    std::ofstream(directory_.file("config.json")) << config.dump();
  }
  const std::string& path() const { return directory_.path(); }
  Result<std::unique_ptr<LoadedDraft>> load(Device& device, const LoadedModel& model,
                                            const DraftLoadOptions& options = {}) const {
    return LoadedDraft::load_eagle3(device, path(), model, options);
  }
  // The error message without the directory.
  std::string error(Device& device, const LoadedModel& model) const {
    const auto made = load(device, model);
    if (made.ok()) return "";
    std::string message = made.status().message;
    for (size_t at = 0; (at = message.find(path())) != std::string::npos;)
      message.erase(at, path().size() + (message[at + path().size()] == '/'));
    return message;
  }

 private:
  TemporaryDirectory directory_;
};

}  // namespace sluice::test
