#include <cstring>
#include <set>
#include <string_view>
#include <vector>

#include "models/draft_load.h"
#include "models/read_config.h"
#include "nn/dense_load.h"

namespace sluice {
namespace of_eagle3 {
namespace {

// The prefixes of a decoder layer's tensors in a checkpoint. Some tools write "model." before them.
struct LayerNames {
  std::string_view prefix;
  MoeNaming mlp;
};
constexpr LayerNames kLayers[] = {{"midlayer.", MoeNaming::kDraftMidlayer},
                                  {"layers.0.", MoeNaming::kDraftLayer},
                                  {"model.midlayer.", MoeNaming::kDraftModelMidlayer},
                                  {"model.layers.0.", MoeNaming::kDenseMlp}};

Result<LayerNames> names_in(const Checkpoint& file) {
  for (const LayerNames& names : kLayers)
    for (const CheckpointTensor& t : file.tensors())
      if (t.name.starts_with(names.prefix)) return names;
  return unsupported(file.path() + ": wanted a layer named midlayer or layers.0, found none among " +
                     std::to_string(file.tensors().size()) + " tensors");
}

// A tensor's name in a checkpoint: with "model." if only the prefixed name exists.
std::string name_in(const Checkpoint* file, const std::string& name) {
  const bool prefixed = file && !file->find_if_there(name) && file->find_if_there("model." + name);
  return prefixed ? "model." + name : name;
}

// The name of a tap's norm. taps: the number of taps. file: null for random weights.
std::string feature_norm_in(const Checkpoint* file, size_t tap, size_t taps) {
  constexpr const char* kOld[] = {"aux_norm_low.weight", "aux_norm_mid.weight", "aux_norm_high.weight"};
  if (file && taps == std::size(kOld)) {
    const std::string old = name_in(file, kOld[tap]);
    if (file->find_if_there(old)) return old;
  }
  return name_in(file, "fc_norm." + std::to_string(tap) + ".weight");
}

// Which weights a head has itself instead of sharing the model's.
struct Own {
  bool embedding = false, lm_head = false;
};

// The head's tensors in loading order; tensors of the same weight are adjacent.
std::vector<TensorSpec> tensors_of(const DraftLayerConfig& c, const Checkpoint* file, const LayerNames& names,
                                   Own own) {
  std::vector<TensorSpec> out;
  const auto add = [&](std::string name, std::vector<int64_t> shape, std::string weight) {
    out.push_back({.name = std::move(name), .shape = std::move(shape), .weight = std::move(weight)});
  };
  const auto outside = [&](const char* name, std::vector<int64_t> shape, std::string weight) {
    add(name_in(file, name), std::move(shape), std::move(weight));
  };
  const auto inside = [&](const std::string& name, std::vector<int64_t> shape, std::string weight) {
    add(std::string(names.prefix) + name, std::move(shape), std::move(weight));
  };
  const int64_t h = c.hidden;
  if (own.embedding) outside("embed_tokens.weight", {c.vocab, h}, "embedding");
  if (c.feature_norm == DraftLayerConfig::FeatureNorm::kAll)
    outside("input_norm.weight", {c.features()}, "feature_norm");
  if (c.feature_norm == DraftLayerConfig::FeatureNorm::kEach)
    for (size_t tap = 0; tap < c.taps.size(); ++tap)
      add(feature_norm_in(file, tap, c.taps.size()), {c.model_hidden}, "feature_norm." + std::to_string(tap));
  if (c.fc) outside("fc.weight", {h, c.features()}, "fc");
  inside("input_layernorm.weight", {h}, "embedding_norm");
  inside("hidden_norm.weight", {h}, "hidden_norm");
  const AttentionConfig& a = c.attention;
  const int64_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  const std::pair<const char*, int64_t> projections[] = {{"q", q}, {"k", kv}, {"v", kv}};
  for (const auto& [name, rows] : projections)
    inside(std::string("self_attn.") + name + "_proj.weight", {rows, a.input}, "attention.qkv");
  if (a.qkv_bias)
    for (const auto& [name, rows] : projections)
      inside(std::string("self_attn.") + name + "_proj.bias", {rows}, "attention.qkv_bias");
  inside("self_attn.o_proj.weight", {h, q}, "attention.o");
  if (a.o_bias) inside("self_attn.o_proj.bias", {h}, "attention.o_bias");
  inside("post_attention_layernorm.weight", {h}, "mlp.norm");
  for (TensorSpec& spec : moe_tensors(c.mlp, names.mlp, 0)) out.push_back(std::move(spec));
  outside("norm.weight", {h}, "final_norm");
  if (own.lm_head) outside("lm_head.weight", {c.draft_vocab, h}, "lm_head");
  return out;
}

// Rejects tensors that config.json does not imply: ignoring a norm or a second layer would ruin every draft.
Status check_unused(const Checkpoint& file, const std::vector<TensorSpec>& specs) {
  std::set<std::string_view> used;
  for (const TensorSpec& spec : specs) used.insert(spec.name);
  for (const CheckpointTensor& t : file.tensors()) {
    std::string_view name = t.name;
    if (used.contains(name)) continue;
    if (name.starts_with("model.")) name.remove_prefix(6);
    // Known tensors that are not read here: d2t (read by token_of) and its inverse t2d, copies of the target
    // model's weights, and a rotary table that config.json determines.
    const bool known = name == "d2t" || name == "t2d" || name.starts_with("verifier_") ||
                       name.ends_with("rotary_emb.inv_freq");
    if (known) continue;
    if (name == "mask_hidden")
      return unsupported(place_of(t) +
                         ": wanted an EAGLE3 head, found a tensor of P-EAGLE, which is not supported");
    return unsupported(place_of(t) + ": wanted only the tensors that config.json implies, found another");
  }
  return {};
}

class Loader {
 public:
  Loader(LoadedDraft::Parts* parts, Device& device, const LoadedModel& model, const DraftLoadOptions& options)
      : parts_(*parts), device_(device), model_(model), options_(options), weights_(parts, device) {}

  Status load(const std::string& directory) {
    SLUICE_TRY(open(directory));
    SLUICE_TRY(share());
    const std::vector<TensorSpec> specs = tensors_of(parts_.config, file_, names_, own_);
    if (!file_) source_ = TensorSource::of_random(specs, {.seed = options_.seed}, host_threads(device_));
    SLUICE_TRY(weights_.check(*source_, specs));
    if (file_) SLUICE_TRY(check_unused(*file_, specs));
    SLUICE_TRY(load_token_of());
    return weights_.load(&*source_, specs, {.naming = names_.mlp, .layer = 0});
  }

 private:
  Status open(const std::string& directory) {
    if (options_.format == LoadFormat::kDummy) return {};
    auto file = Checkpoint::open(directory);
    if (!file.ok()) return file.status();
    source_ = TensorSource::of_files(std::move(file).value(), host_threads(device_));
    file_ = source_->files();
    const auto names = names_in(*file_);
    if (!names.ok()) return names.status();
    names_ = names.value();
    return {};
  }

  const CheckpointTensor* find(const std::string& name) const {
    return file_->find_if_there(name_in(file_, name));
  }

  // Decides which weights the head shares with the model, and whether d2t maps its tokens.
  Status share() {
    DraftLayerConfig& c = parts_.config;
    const bool whole = c.draft_vocab == c.vocab, same_width = c.hidden == c.model_hidden;
    if (file_) {
      own_ = {.embedding = find("embed_tokens.weight") != nullptr,
              .lm_head = find("lm_head.weight") != nullptr};
      c.maps_tokens = find("d2t") != nullptr;
    } else {
      c.maps_tokens = !whole;
    }
    // The model's weights have other shapes in these cases, so the head cannot share them. If its files
    // lack these tensors, loading fails and names them.
    own_.embedding |= !same_width;
    own_.lm_head |= !same_width || !whole;
    if (!whole && !c.maps_tokens)
      return {Code::kCorrupt, file_->path() + ": d2t: wanted I64[" + std::to_string(c.draft_vocab) +
                                  "], as draft_vocab_size is smaller than vocab_size, found no such tensor"};
    for (const auto& [own, name] : {std::pair{own_.embedding, "embedding"}, {own_.lm_head, "lm_head"}})
      if (!own) parts_.weights.set(-1, name, model_.weights()(-1, name));
    return {};
  }

  // The model's token id for each draft token id. d2t stores the difference of the two.
  Result<std::vector<int32_t>> token_of() const {
    const DraftLayerConfig& c = parts_.config;
    std::vector<int32_t> out(static_cast<size_t>(c.draft_vocab));
    if (!file_) {
      for (int64_t j = 0; j < c.draft_vocab; ++j)
        out[static_cast<size_t>(j)] = static_cast<int32_t>(j * c.vocab / c.draft_vocab);
      return out;
    }
    const auto found = file_->find(name_in(file_, "d2t"), StoredType::kI64, {c.draft_vocab});
    if (!found.ok()) return found.status();
    const CheckpointTensor& t = *found.value();
    SLUICE_TRY(file_->check_whole());
    for (int64_t j = 0; j < c.draft_vocab; ++j) {
      int64_t distance = 0;
      std::memcpy(&distance, t.data + 8 * j, 8);
      if (distance < -j || distance >= c.vocab - j)
        return Status{Code::kCorrupt, place_of(t) + ": wanted an integer from " + std::to_string(-j) +
                                          " to " + std::to_string(c.vocab - 1 - j) + " at element " +
                                          std::to_string(j) + ", found " + std::to_string(distance)};
      out[static_cast<size_t>(j)] = static_cast<int32_t>(j + distance);
    }
    return out;
  }

  Status load_token_of() {
    if (!parts_.config.maps_tokens) return {};
    const auto tokens = token_of();
    if (!tokens.ok()) return tokens.status();
    const std::vector<int32_t>& from = tokens.value();
    const SlotSpec token_slot = slot("token_of", Role::kIn, DType::kI32, {std::ssize(from)});
    auto made = OwnedTensor::make(device_, token_slot, "the draft head's tokens");
    if (made.ok()) {
      SLUICE_TRY(device_.copy(made.value().view().data, from.data(), from.size() * sizeof from[0],
                              device_.stream()));
      SLUICE_TRY(device_.wait(device_.stream()));
    }
    return weights_.keep(std::move(made), token_slot);
  }

  LoadedDraft::Parts& parts_;
  Device& device_;
  const LoadedModel& model_;
  const DraftLoadOptions& options_;
  DraftWeights weights_;
  LayerNames names_ = kLayers[0];
  Own own_;
  std::optional<TensorSource> source_;
  const Checkpoint* file_ = nullptr;  // null for random weights
};

}  // namespace
}  // namespace of_eagle3

Result<std::unique_ptr<LoadedDraft>> LoadedDraft::load_eagle3(Device& device, const std::string& directory,
                                                              const LoadedModel& model,
                                                              const DraftLoadOptions& options) {
  const std::string path = directory + "/config.json";
  const Result<Json> json = read_json(path, kConfigBytesMax);
  if (!json.ok()) return json.status();
  const JsonAt config(json.value(), path);
  const auto read = read_eagle3_config(config, model.config());
  if (!read.ok()) return read.status();
  const auto drafts = read_speculative_tokens(config);
  if (!drafts.ok()) return drafts.status();
  auto parts = std::make_unique<Parts>();
  parts->config = read.value().with_layouts_of(device.info()).with_activations(options.x);
  parts->speculative_tokens = drafts.value();
  SLUICE_TRY(of_eagle3::Loader(parts.get(), device, model, options).load(directory));
  return std::unique_ptr<LoadedDraft>(new LoadedDraft(std::move(parts)));
}

}  // namespace sluice
