// Loads the multi-token prediction layer of a DeepSeek V3 checkpoint.
//
// Source  DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 2.2; tensor names:
//         deepseek-ai/DeepSeek-V3, model.safetensors.index.json.
#include "models/draft_load.h"
#include "models/quantization.h"
#include "models/read_config.h"
#include "nn/dense_load.h"

namespace sluice {

namespace {

std::string prefix_of(int64_t layer) { return "model.layers." + std::to_string(layer) + "."; }

}  // namespace

std::vector<std::string> mtp_copies(int64_t layer) {
  return {prefix_of(layer) + "embed_tokens.weight", prefix_of(layer) + "shared_head.head.weight"};
}

bool has_mtp_layer(const Checkpoint& files, const ModelConfig& model) {
  if (model.mtp_layers == 0) return false;
  const std::string prefix = prefix_of(std::ssize(model.decoder.layers));
  for (const char* own : {"enorm.weight", "hnorm.weight", "eh_proj.weight"})
    if (files.find_if_there(prefix + own)) return true;
  return false;
}

std::vector<TensorSpec> mtp_tensors(const DraftLayerConfig& c, int64_t layer) {
  const std::string prefix = prefix_of(layer);
  std::vector<TensorSpec> out;
  const auto add = [&](const char* name, std::vector<int64_t> shape, const char* weight) {
    out.push_back({.name = prefix + name, .shape = std::move(shape), .weight = weight});
  };
  add("enorm.weight", {c.hidden}, "embedding_norm");
  add("hnorm.weight", {c.hidden}, "hidden_norm");
  add("eh_proj.weight", {c.hidden, 2 * c.hidden}, "eh_proj");
  for (TensorSpec& spec :
       hugging_face_layer({.attention = c.attention, .mlp = c.mlp}, MoeNaming::kDeepSeekV3, layer))
    out.push_back(std::move(spec));
  add("shared_head.norm.weight", {c.hidden}, "final_norm");
  return out;
}

Result<DraftLayerConfig> mtp_config(const ModelConfig& model) {
  if (model.mtp_layers == 0)
    return unsupported(
        "mtp: wanted a model with layers for multi-token prediction "
        "(num_nextn_predict_layers), found " +
        model.architecture + " without");
  const DecoderConfig& d = model.decoder;
  DraftLayerConfig out{.kind = DraftLayerConfig::Kind::kMtp,
                       .vocab = d.vocab,
                       .draft_vocab = d.vocab,
                       .hidden = d.hidden,
                       .model_hidden = d.hidden,
                       .taps = {static_cast<int32_t>(d.layers.size()) + 1},
                       .fc = false,
                       .norm_output = true,
                       .eps = d.eps,
                       .x = d.x,
                       .attention = d.layers.back().attention,
                       .mlp = d.layers.back().mlp,
                       .rope = d.rope};
  out.mlp.capture = false;
  return out;
}

Result<std::unique_ptr<LoadedDraft>> LoadedDraft::load_mtp(Device& device, const std::string& directory,
                                                           const LoadedModel& model,
                                                           const DraftLoadOptions& options) {
  const auto config = mtp_config(model.config());
  if (!config.ok()) return config.status();
  auto parts = std::make_unique<Parts>();
  parts->config = config.value().with_layouts_of(device.info()).with_activations(options.x);
  parts->config.mlp.logits = options.router_logits;
  if (options.experts && options.experts != &device && !parts->config.mlp.dense) {
    parts->experts = options.experts;
    parts->config.mlp.layout = layout_for(options.experts->info().backend);
  }
  for (const char* name : {"embedding", "lm_head"}) parts->weights.set(-1, name, model.weights()(-1, name));
  const int64_t layer = std::ssize(model.config().decoder.layers);
  std::vector<TensorSpec> specs = mtp_tensors(parts->config, layer);
  const int threads = host_threads(device);
  std::optional<TensorSource> source;
  if (options.format == LoadFormat::kDummy) {
    // The layer's tensors come after the model's in the random stream, in the order in which `sluice
    // make-checkpoint` writes them.
    std::vector<TensorSpec> all = hugging_face_tensors(model.config(), MoeNaming::kDeepSeekV3);
    all.insert(all.end(), specs.begin(), specs.end());
    source = TensorSource::of_random(all, {.seed = options.seed}, threads);
  } else {
    auto file = Checkpoint::open(directory);
    if (!file.ok()) return file.status();
    // Quantized checkpoints may have this layer in bf16.
    SLUICE_TRY(fit_experts_to_files(*file.value(), MoeNaming::kDeepSeekV3, layer, &parts->config.mlp));
    specs = mtp_tensors(parts->config, layer);
    source = TensorSource::of_files(std::move(file).value(), threads);
  }
  DraftWeights weights(parts.get(), device);
  // Some tools omit the layer but keep num_nextn_predict_layers in the config, so the error names the key.
  if (Status status = weights.check(*source, specs); !status.ok())
    return Status{status.code,
                  "mtp, layer " + std::to_string(layer) + " (num_nextn_predict_layers): " + status.message};
  SLUICE_TRY(weights.load(&*source, specs, {.naming = MoeNaming::kDeepSeekV3, .layer = layer}));
  return std::unique_ptr<LoadedDraft>(new LoadedDraft(std::move(parts)));
}

}  // namespace sluice
