#include "models/load.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "models/draft.h"
#include "models/tensor_slice.h"
#include "models/tensor_source.h"
#include "nn/dense_load.h"
#include "nn/moe/canary.h"
#include "nn/moe/problems.h"
#include "weights/numbers.h"
#include "weights/stored_matrix.h"

namespace sluice {

struct LoadedModel::Parts {
  ModelConfig config;
  NamedWeights weights;
  std::vector<OwnedTensor> dense;
  std::vector<std::unique_ptr<LoadedMoe>> moe;
  int64_t weight_bytes = 0, active_bytes = 0;
  LoadNotes notes;
};

namespace {

std::string gigabytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GB", 1e-9 * static_cast<double>(bytes));
  return text;
}

// Checks, before memory is allocated, that every tensor exists under the checkpoint's naming, with the type
// and shape that the config implies. load_moe() checks expert tensors, because it accepts more types than the
// specs say.
Result<MoeNaming> check_files(const TensorSource& source, const Family& family, const ModelConfig& config) {
  const Checkpoint& file = *source.files();
  const Result<MoeNaming> naming = detect(file);
  if (!naming.ok()) return naming.status();
  const std::vector<MoeNaming> known = family.namings(config);
  if (std::find(known.begin(), known.end(), naming.value()) == known.end()) {
    // The config and the files disagree about the experts. The error names the first tensor that is missing.
    for (const TensorSpec& spec : family.tensors(config, known.front()))
      if (const auto found = file.find(spec.name); !found.ok()) return found.status();
  }
  for (const TensorSpec& spec : family.tensors(config, naming.value())) {
    if (!spec.of_mlp || source.is_widened(spec)) SLUICE_TRY(source.check(spec));
  }
  return naming;
}

// Rejects tensors that answers would ignore: LoRA adapters that are not merged, and AWQ's scales of a layer's input.
Status check_merged(const Checkpoint& file) {
  for (const CheckpointTensor& t : file.tensors()) {
    if (t.name.ends_with(".pre_quant_scale"))
      return unsupported(place_of(t) +
                         ": wanted a checkpoint whose layers take their input unscaled, found an AWQ scale");
    if (t.name.find("lora_") != std::string::npos)
      return unsupported(place_of(t) +
                         ": wanted a checkpoint whose adapters are merged into its weights (PEFT: "
                         "merge_and_unload), found an adapter's tensor");
  }
  return {};
}

// The tensors of the multi-token prediction layer, which is loaded separately from the model.
void add_mtp_layer(const TensorSource& source, const ModelConfig& config, std::set<std::string>* used) {
  if (!has_mtp_layer(*source.files(), config)) return;
  const int64_t layer = std::ssize(config.decoder.layers);
  for (const TensorSpec& spec : mtp_tensors(mtp_config(config).value(), layer)) {
    for (const CheckpointTensor* t : tensors_of_matrix(*source.files(), spec.name)) used->insert(t->name);
  }
  for (std::string& name : mtp_copies(layer)) used->insert(std::move(name));
}

LoadNotes notes_about(const TensorSource& source, const ModelConfig& config,
                      const std::vector<TensorSpec>& specs) {
  const Checkpoint& file = *source.files();
  LoadNotes out;
  std::set<std::string> used;
  for (const TensorSpec& spec : specs) {
    const CheckpointTensor* t = file.find_if_there(spec.name);
    if (spec.format.scaled() || source.is_widened(spec)) {
      if (!is_codes(spec)) continue;
      for (const CheckpointTensor* part : tensors_of_matrix(file, spec.name)) used.insert(part->name);
      if (!spec.format.scaled()) out.fp8.push_back(spec.name);
      continue;
    }
    if (!t || !used.insert(t->name).second) continue;  // a tied lm_head is the embedding
    if (spec.type == StoredType::kBF16 && t->type != spec.type && is_number(t->type))
      out.converted.push_back(t->name);
  }
  add_mtp_layer(source, config, &used);
  for (const CheckpointTensor& t : file.tensors())
    if (!used.contains(t.name)) out.unused.push_back(t.name);
  return out;
}

class ModelLoader {
 public:
  ModelLoader(LoadedModel::Parts* parts, Device& device, const LoadOptions& options)
      : parts_(*parts), device_(device), options_(options) {}

  Status load(const Family& family, const std::string& directory) {
    SLUICE_TRY(open(family, directory));
    SLUICE_TRY(take_slice());
    SLUICE_TRY(check_memory());
    for (const HeldSlot& slot : decoder_weights(parts_.config.decoder)) {
      const auto specs = dense_.find({slot.layer, slot.name});
      if (specs != dense_.end()) SLUICE_TRY(load_dense_weight(slot, specs->second));
    }
    for (int64_t layer = 0; layer < std::ssize(experts_); ++layer) SLUICE_TRY(load_mlp(layer));
    progress(total_ - done_);  // corrects for bytes that packing adds or omits
    return {};
  }

 private:
  Status open(const Family& family, const std::string& directory) {
    if (options_.format == LoadFormat::kDummy) {
      naming_ = family.namings(parts_.config).front();
    } else {
      auto file = Checkpoint::open(directory);
      if (!file.ok()) return file.status();
      source_ = TensorSource::of_files(std::move(file).value(), host_threads(device_));
      SLUICE_TRY(check_merged(*source_->files()));
      SLUICE_TRY(family.fit(*source_->files(), &parts_.config));
      const auto naming = check_files(*source_, family, parts_.config);
      if (!naming.ok()) return naming.status();
      naming_ = naming.value();
    }
    const std::vector<TensorSpec> all = family.tensors(parts_.config, naming_);
    const MoeConfig& moe = parts_.config.decoder.moe();
    if (options_.format == LoadFormat::kDummy && options_.routing != Routing::kUniform && !moe.router_bias)
      return unsupported("routing zipf: wanted a model whose routers have biases, found " +
                         parts_.config.architecture);
    if (options_.format == LoadFormat::kDummy)
      source_ = TensorSource::of_random(
          all, {.seed = options_.seed, .routing = options_.routing, .top_k = moe.top_k},
          host_threads(device_));
    if (source_->files()) parts_.notes = notes_about(*source_, parts_.config, all);
    experts_.resize(parts_.config.decoder.layers.size());
    for (const TensorSpec& spec : all)
      (spec.of_mlp ? experts_[static_cast<size_t>(spec.layer)] : dense_[{spec.layer, spec.weight}])
          .push_back(spec);
    return {};
  }

  Status take_slice() {
    whole_ = parts_.config.decoder;
    if (options_.slice.ranks > 1 && options_.experts)
      return unsupported(
          "tensor parallelism: wanted the experts on the model's devices, found them offloaded");
    auto slice = sliced(whole_, options_.slice);
    if (!slice.ok()) return slice.status();
    parts_.config.decoder = std::move(slice).value();
    return {};
  }

  // Bytes of the part of a tensor that this rank loads.
  int64_t bytes_of_slice(const TensorSpec& spec) const {
    const int64_t bytes = *stored_bytes(spec.type, spec.shape);
    const bool whole = !spec.of_mlp && parts_of(spec).rows.empty() && parts_of(spec).columns.count == 0;
    return whole ? bytes : (bytes + options_.slice.ranks - 1) / options_.slice.ranks;
  }
  WeightParts parts_of(const TensorSpec& spec) const {
    if (spec.layer < 0) return {};
    return parts_of_weight(whole_.layers[static_cast<size_t>(spec.layer)].attention, spec.weight,
                           options_.slice);
  }

  // Checks free memory before loading: Linux overcommits memory and may kill the process later.
  Status check_memory() {
    int64_t dense = 0, largest = 0;  // sum over dense weights; largest amount generated at once
    const auto add = [&](const std::vector<TensorSpec>& specs, int64_t* to) {
      int64_t sum = 0, generated = 0;
      for (const TensorSpec& spec : specs)
        sum += bytes_of_slice(spec), generated += *stored_bytes(spec.type, spec.shape);
      largest = std::max(largest, generated), *to += sum, total_ += sum;
    };
    for (const auto& [place, specs] : dense_) add(specs, &dense);
    int64_t offloaded = 0;
    for (size_t layer = 0; layer < experts_.size(); ++layer)
      add(experts_[layer], parts_.config.decoder.layers[layer].mlp.dense ? &dense : &offloaded);
    const int64_t beside = !source_->files() && device_.shares_host_memory() ? largest : 0;
    const auto check_free = [&](const Device& device, int64_t wanted) -> Status {
      const int64_t free = device.free_bytes();
      if (wanted <= free) return {};
      return out_of_memory(source_->place() + ": wanted " + gigabytes(wanted) +
                           " of memory for the weights, found " + gigabytes(free) + " free");
    };
    if (!options_.experts) return check_free(device_, total_ + beside);
    SLUICE_TRY(check_free(device_, dense + beside));
    return check_free(*options_.experts, offloaded);
  }

  void progress(int64_t bytes) {
    if (options_.progress) options_.progress({std::min(done_ + bytes, total_), total_});
  }

  // Loads one weight from the tensors that form it, in the layout of the device's kernels or unchanged.
  Result<OwnedTensor> make_dense(const HeldSlot& slot, const Checkpoint& from,
                                 const std::vector<TensorSpec>& specs) {
    const TensorSpec& first = specs.front();
    const Numbers allowed = slot.name == "attention.sinks" ? Numbers::kNoNan : Numbers::kFinite;
    if (specs.size() == 1 && slot.spec.dtype != DType::kU8)
      return load_dense(device_, from, {first.name, first.shape, DType::kBF16, allowed},
                        host_threads(device_));
    std::vector<DensePart> rows;
    for (const TensorSpec& s : specs) rows.push_back({s.name, s.shape[0]});
    if (first.shape.size() == 1) return load_stacked(device_, from, rows, DType::kBF16);
    return pack_dense(device_, from, rows, first.shape[1], host_threads(device_));
  }

  Status load_dense_weight(const HeldSlot& slot, std::vector<TensorSpec> specs) {
    auto held = source_->hold(specs);
    if (!held.ok()) return held.status();
    const WeightParts parts = parts_of(specs.front());
    if (!parts.rows.empty() || parts.columns.count > 0) held = slicer_.hold(*held.value(), parts, &specs);
    if (!held.ok()) return held.status();
    auto made = make_dense(slot, *held.value(), specs);
    if (!made.ok()) return made.status();
    const int64_t bytes = made.value().bytes();
    parts_.weights.set(slot.layer, slot.name, shaped_like(slot.spec, made.value().view()));
    parts_.weight_bytes += bytes, done_ += bytes;
    if (specs.front().shape.size() > 1 && slot.name != "embedding") parts_.active_bytes += bytes;
    parts_.dense.push_back(std::move(made).value());
    progress(0);
    return {};
  }

  Status load_mlp(int64_t layer) {
    const MoeConfig& config = whole_.layers[static_cast<size_t>(layer)].mlp;
    const MoeConfig& local = parts_.config.decoder.layers[static_cast<size_t>(layer)].mlp;
    Device& device = options_.experts && !config.dense ? *options_.experts : device_;
    const auto held = source_->hold(experts_[static_cast<size_t>(layer)]);
    if (!held.ok()) return held.status();
    auto loaded = load_moe(device, *held.value(), config,
                           {.naming = naming_of(config, naming_),
                            .layer = layer,
                            .slice = options_.slice.mlp(),
                            .threads = host_threads(device_),
                            .progress = [&](int64_t bytes, int64_t) { progress(bytes); }});
    if (!loaded.ok()) return loaded.status();
    if (options_.canary == LoadOptions::Canary::kRun)
      SLUICE_TRY(
          canary(device, *loaded.value(), *held.value(),
                 {.policy = options_.policy, .backend = config.dense ? MoeBackend{} : options_.backend}));
    const int64_t bytes = loaded.value()->bytes();
    done_ += bytes;
    parts_.weight_bytes += bytes;
    const int64_t slots = shared_slots(config);
    const double shared_bits = WeightFormat{config.shared_w, config.shared_scales}.bits();
    const auto shared = static_cast<int64_t>(
        slots > 0 ? 0
                  : shared_bits / 8 * static_cast<double>(3 * config.hidden * config.shared_intermediate));
    parts_.active_bytes += shared + (bytes - shared) * (config.top_k + slots) / (config.experts + slots);
    parts_.weights.set_moe(layer, local, loaded.value()->weights());
    parts_.moe.push_back(std::move(loaded).value());
    return {};
  }

  LoadedModel::Parts& parts_;
  Device& device_;
  const LoadOptions& options_;
  MoeNaming naming_ = MoeNaming::kGptOss;
  std::optional<TensorSource> source_;
  TensorSlicer slicer_;
  DecoderConfig whole_;  // the decoder before slicing
  // The tensors of each weight in stacking order, and the tensors of each layer's MLP.
  std::map<std::pair<int64_t, std::string>, std::vector<TensorSpec>> dense_;
  std::vector<std::vector<TensorSpec>> experts_;
  int64_t done_ = 0, total_ = 0;  // bytes of the weights in the files
};

}  // namespace

LoadedModel::LoadedModel(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
LoadedModel::~LoadedModel() = default;
const ModelConfig& LoadedModel::config() const { return parts_->config; }
const NamedWeights& LoadedModel::weights() const { return parts_->weights; }
int64_t LoadedModel::weight_bytes() const { return parts_->weight_bytes; }
int64_t LoadedModel::active_bytes() const { return parts_->active_bytes; }
const LoadNotes& LoadedModel::notes() const { return parts_->notes; }

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(Device& device, const std::string& directory,
                                                       const LoadOptions& options) {
  auto config = read_model_config(directory);
  if (!config.ok()) return config.status();
  auto parts = std::make_unique<Parts>();
  parts->config = std::move(config).value();
  DecoderConfig& decoder = parts->config.decoder;
  decoder = decoder.with_layouts_of(device.info())
                .with_activations(options.x)
                .with_fp8_activations(options.fp8_activations);
  if (options.experts)
    for (LayerConfig& layer : decoder.layers)
      if (!layer.mlp.dense) layer.mlp.layout = layout_for(options.experts->info().backend);
  for (const Family* family : families())
    if (family->architecture == parts->config.architecture)
      SLUICE_TRY(ModelLoader(parts.get(), device, options).load(*family, directory));
  return std::unique_ptr<LoadedModel>(new LoadedModel(std::move(parts)));
}

}  // namespace sluice
