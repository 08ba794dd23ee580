#include "models/load.h"

#include <algorithm>
#include <cstdio>
#include <tuple>

#include "nn/dense_load.h"
#include "nn/moe_canary.h"

namespace sluice {

struct LoadedModel::Parts {
  ModelConfig config;
  DecoderWeights weights;
  std::vector<OwnedTensor> dense;
  std::vector<std::unique_ptr<LoadedMoe>> moe;
  int64_t weight_bytes = 0, active_bytes = 0;
};

namespace {

std::string gigabytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GB", 1e-9 * static_cast<double>(bytes));
  return text;
}

class Loader {
 public:
  Loader(LoadedModel::Parts* parts, Device& device, const Checkpoint& checkpoint, const LoadOptions& options)
      : parts_(*parts), device_(device), checkpoint_(checkpoint), options_(options) {}

  Status load(const Family& family) {
    SLUICE_TRY(find_all(family));
    SLUICE_TRY(check_memory());
    parts_.weights.layers.resize(static_cast<size_t>(parts_.config.decoder.layers()));
    for (size_t i = 0; i < specs_.size();) {
      // Tensors that are stacked are neighbours.
      size_t end = i + 1;
      while (end < specs_.size() && specs_[end].first_row > 0 && specs_[end].part == specs_[i].part) ++end;
      SLUICE_TRY(load_dense_part(std::span(specs_).subspan(i, end - i)));
      i = end;
    }
    for (int64_t layer = 0; layer < parts_.config.decoder.layers(); ++layer) SLUICE_TRY(load_experts(layer));
    progress(total_ - done_);  // what packing added or left out does not count
    return {};
  }

 private:
  // Every tensor under the naming that the checkpoint follows, of the type and shape that the config asks for; before
  // memory is taken. Experts are left to load_moe, which knows the types that stand for each other.
  Status find_all(const Family& family) {
    const Result<MoeNaming> naming = detect(checkpoint_);
    if (!naming.ok()) return naming.status();
    naming_ = naming.value();
    const std::vector<MoeNaming> known = family.namings(parts_.config);
    if (std::find(known.begin(), known.end(), naming_) == known.end()) {
      // Config and files disagree about the experts; the first missing tensor shows how.
      for (const TensorSpec& spec : family.tensors(parts_.config, known.front()))
        if (const auto found = checkpoint_.find(spec.name); !found.ok()) return found.status();
    }
    for (TensorSpec& spec : family.tensors(parts_.config, naming_)) {
      if (spec.part >= DecoderPart::kRouter) continue;
      const auto tensor = checkpoint_.find(spec.name, spec.type, spec.shape);
      if (!tensor.ok()) return tensor.status();
      specs_.push_back(std::move(spec));
    }
    // Stacked tensors become neighbours, whatever is between them in the list.
    std::sort(specs_.begin(), specs_.end(), [](const TensorSpec& a, const TensorSpec& b) {
      return std::tuple(a.layer, a.part, a.first_row) < std::tuple(b.layer, b.part, b.first_row);
    });
    return {};
  }

  // Linux overcommits memory and may kill the process later, so ask first.
  Status check_memory() {
    total_ = checkpoint_.bytes();
    const int64_t free = device_.free_bytes();
    if (total_ <= free) return {};
    return out_of_memory(checkpoint_.path() + ": wanted " + gigabytes(total_) +
                         " of memory for the weights, found " + gigabytes(free) + " free");
  }

  void progress(int64_t bytes) {
    if (options_.progress) options_.progress({std::min(done_ + bytes, total_), total_});
  }

  Status keep(Result<OwnedTensor> made, Tensor* to) {
    if (!made.ok()) return made.status();
    *to = made.value().view();
    done_ += made.value().bytes();
    parts_.weight_bytes += made.value().bytes();
    parts_.dense.push_back(std::move(made).value());
    progress(0);
    return {};
  }

  Status copy(const TensorSpec& spec, Tensor* to) {
    if (spec.shape.size() == 2)
      return keep(load_dense(device_, checkpoint_, spec.name, {spec.shape[0], spec.shape[1]}, DType::kBF16),
                  to);
    return keep(load_dense(device_, checkpoint_, spec.name, {spec.shape[0]}, DType::kBF16), to);
  }

  // Matrices one below the other, packed as one; biases likewise, copied.
  Status stack(std::span<const TensorSpec> specs, Tensor* to) {
    std::vector<DensePart> rows;
    for (const TensorSpec& s : specs) rows.push_back({s.name, s.shape[0]});
    if (specs.front().shape.size() == 1)
      return keep(load_stacked(device_, checkpoint_, rows, DType::kBF16), to);
    SLUICE_TRY(
        keep(pack_dense(device_, checkpoint_, rows, specs.front().shape[1], device_.info().cores), to));
    parts_.active_bytes += elements_of(*to);
    return {};
  }

  Status load_dense_part(std::span<const TensorSpec> specs) {
    DecoderWeights& w = parts_.weights;
    const TensorSpec& spec = specs.front();
    for (const TensorSpec& s : specs)
      SLUICE_TRY(check_numbers(*checkpoint_.find_if_there(s.name),
                               s.part == DecoderPart::kSinks ? Numbers::kNoNan : Numbers::kFinite));
    if (spec.part == DecoderPart::kEmbedding) return copy(spec, &w.embedding);
    if (spec.part == DecoderPart::kFinalNorm) return copy(spec, &w.final_norm);
    if (spec.part == DecoderPart::kLmHead) return stack(specs, &w.lm_head);
    DecoderLayerWeights& l = w.layers[static_cast<size_t>(spec.layer)];
    switch (spec.part) {
      case DecoderPart::kAttentionNorm:
        return copy(spec, &l.attention_norm);
      case DecoderPart::kMoeNorm:
        return copy(spec, &l.moe_norm);
      case DecoderPart::kSinks:
        return copy(spec, &l.attention.sinks);
      case DecoderPart::kQkv:
        return stack(specs, &l.attention.qkv);
      case DecoderPart::kQkvBias:
        return stack(specs, &l.attention.qkv_bias);
      case DecoderPart::kO:
        return stack(specs, &l.attention.o);
      case DecoderPart::kOBias:
        return copy(spec, &l.attention.o_bias);
      default:
        return invalid("load: " + spec.name + ": no part of a decoder");
    }
  }

  Status load_experts(int64_t layer) {
    const MoeConfig& config = parts_.config.decoder.moe;
    Device& device = options_.experts ? *options_.experts : device_;
    auto loaded = load_moe(device, checkpoint_, config,
                           {.naming = naming_,
                            .layer = layer,
                            .slice = {},
                            .threads = device_.info().cores,
                            .progress = [&](int64_t bytes, int64_t) { progress(bytes); }});
    if (!loaded.ok()) return loaded.status();
    if (options_.canary == LoadOptions::Canary::kRun)
      SLUICE_TRY(canary(device, *loaded.value(), checkpoint_,
                        {.policy = options_.policy, .backend = options_.backend}));
    const int64_t bytes = loaded.value()->bytes();
    done_ += bytes;
    parts_.weight_bytes += bytes;
    parts_.active_bytes += bytes * config.top_k / config.experts;
    parts_.weights.layers[static_cast<size_t>(layer)].moe = loaded.value()->weights();
    parts_.moe.push_back(std::move(loaded).value());
    return {};
  }

  LoadedModel::Parts& parts_;
  Device& device_;
  const Checkpoint& checkpoint_;
  const LoadOptions& options_;
  MoeNaming naming_ = MoeNaming::kGptOss;
  std::vector<TensorSpec> specs_;
  int64_t done_ = 0, total_ = 0;  // bytes of the checkpoint
};

}  // namespace

LoadedModel::LoadedModel(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
LoadedModel::~LoadedModel() = default;
const ModelConfig& LoadedModel::config() const { return parts_->config; }
const DecoderWeights& LoadedModel::weights() const { return parts_->weights; }
int64_t LoadedModel::weight_bytes() const { return parts_->weight_bytes; }
int64_t LoadedModel::active_bytes() const { return parts_->active_bytes; }

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(Device& device, const std::string& directory,
                                                       const LoadOptions& options) {
  auto config = read_model_config(directory);
  if (!config.ok()) return config.status();
  auto parts = std::make_unique<Parts>();
  parts->config = std::move(config).value();
  DecoderConfig& decoder = parts->config.decoder;
  decoder = decoder.with_layouts_of(device.info()).with_activations(options.x);
  if (options.experts) decoder.moe.layout = layout_for(options.experts->info().backend);
  auto checkpoint = Checkpoint::open(directory);
  if (!checkpoint.ok()) return checkpoint.status();
  for (const Family* family : families()) {
    if (family->architecture != parts->config.architecture) continue;
    Loader loader(parts.get(), device, *checkpoint.value(), options);
    SLUICE_TRY(loader.load(*family));
  }
  return std::unique_ptr<LoadedModel>(new LoadedModel(std::move(parts)));
}

}  // namespace sluice
