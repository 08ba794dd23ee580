#include "models/load.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "weights/checkpoint.h"
#include "weights/packed.h"
#include "weights/panels.h"

namespace sluice {

struct LoadedModel::Parts {
  explicit Parts(Device& d) : device(d) {}
  ~Parts() {
    for (void* block : memory) device.release(block);
  }
  Device& device;
  ModelConfig config;
  DecoderWeights weights;
  std::vector<void*> memory;
  int64_t weight_bytes = 0, active_bytes = 0;
};

namespace {

constexpr double kGb = 1e-9;

// The checkpoint's tensors under the naming that it uses, each of the type and shape that the config asks for.
struct Found {
  Naming naming = Naming::kHuggingFace;
  std::vector<TensorSpec> specs;
  std::vector<const CheckpointTensor*> tensors;  // of specs, in their order
};

Result<Found> find_all(const Family& family, const ModelConfig& config, const Checkpoint& checkpoint) {
  Found out;
  // One tensor tells the namings apart; the errors are those of Hugging Face's where neither fits.
  const std::vector<TensorSpec> original = family.tensors(config, Naming::kOriginal);
  if (checkpoint.find_if_there(original.front().name)) out.naming = Naming::kOriginal;
  out.specs = family.tensors(config, out.naming);
  for (const TensorSpec& spec : out.specs) {
    const auto tensor = checkpoint.find(spec.name, *stored_type(spec.dtype), spec.shape);
    if (!tensor.ok()) return tensor.status();
    out.tensors.push_back(tensor.value());
  }
  return out;
}

class Loader {
 public:
  Loader(LoadedModel::Parts* parts, const Checkpoint& checkpoint, const LoadOptions& options)
      : parts_(*parts), checkpoint_(checkpoint), options_(options) {}

  Status load(const Family& family) {
    auto found = find_all(family, parts_.config, checkpoint_);
    if (!found.ok()) return found.status();
    found_ = std::move(found).value();
    for (const CheckpointTensor* t : found_.tensors) progress_.bytes_total += t->bytes;
    SLUICE_TRY(check_memory());
    parts_.weights.layers.resize(static_cast<size_t>(parts_.config.decoder.layers()));
    for (size_t i = 0; i < found_.specs.size(); ++i)
      SLUICE_TRY(load_dense(found_.specs[i], *found_.tensors[i]));
    for (int64_t layer = 0; layer < parts_.config.decoder.layers(); ++layer) SLUICE_TRY(load_experts(layer));
    return {};
  }

 private:
  // Linux lends memory that it does not have and ends the process later; so the question comes first.
  Status check_memory() const {
    const int64_t free = parts_.device.free_bytes();
    if (progress_.bytes_total <= free) return {};
    const auto gb = [](int64_t bytes) {
      char text[32];
      std::snprintf(text, sizeof text, "%.2f GB", kGb * static_cast<double>(bytes));
      return std::string(text);
    };
    return out_of_memory(checkpoint_.path() + ": wanted " + gb(progress_.bytes_total) +
                         " of memory for the weights, found " + gb(free) + " free");
  }

  Result<Tensor> take(DType dtype, std::initializer_list<int64_t> shape) {
    Tensor t = make_tensor(nullptr, dtype, shape, parts_.device.info().backend);
    const int64_t bytes = bytes_of(dtype, elements_of(t));
    const Result<void*> block = parts_.device.allocate(static_cast<size_t>(bytes));
    if (!block.ok()) return block.status();
    parts_.memory.push_back(block.value());
    parts_.weight_bytes += bytes;
    t.data = block.value();
    return t;
  }

  void done_with(const CheckpointTensor& from) {
    checkpoint_.release(from);
    progress_.bytes_done += from.bytes;
    if (options_.progress) options_.progress(progress_);
  }

  // A bf16 tensor as it is; the joined biases of a projection are filled part by part.
  Status copy(const CheckpointTensor& from, int64_t first, int64_t elements, Tensor* to) {
    if (!to->present()) {
      auto made = from.shape.size() == 2 ? take(DType::kBF16, {from.shape[0], from.shape[1]})
                                         : take(DType::kBF16, {elements});
      if (!made.ok()) return made.status();
      *to = made.value();
    }
    std::memcpy(to->as<BF16>() + first, from.data, static_cast<size_t>(from.bytes));
    done_with(from);
    return {};
  }

  // Matrices one below the other, packed as one.
  Status pack(const std::vector<const CheckpointTensor*>& from, int64_t rows, int64_t width, Tensor* to) {
    auto made = take(DType::kU8, {panel_shape(rows, false, width).code_bytes(false)});
    if (!made.ok()) return made.status();
    *to = made.value();
    parts_.active_bytes += elements_of(*to);
    PanelSource source;
    for (const CheckpointTensor* t : from)
      source.rows.push_back({.rows = t->shape[0], .w = t->data, .stride = 2 * width, .tensor = t});
    const auto packed = pack_rows({.features = rows, .width = width}, source, {.w = *to, .scales = {}},
                                  {.threads = parts_.device.info().cores});
    if (!packed.ok()) return packed.status();
    for (const CheckpointTensor* t : from) done_with(*t);
    return {};
  }

  // The parts of a layer's joined projection, gathered until the last of them.
  Status pack_qkv(const TensorSpec& spec, const CheckpointTensor& from, int64_t rows, Tensor* to) {
    joined_.push_back(&from);
    if (spec.first_row + spec.shape[0] < rows) return {};
    const std::vector<const CheckpointTensor*> all = std::move(joined_);
    joined_.clear();
    return pack(all, rows, spec.shape[1], to);
  }

  Status load_dense(const TensorSpec& spec, const CheckpointTensor& from) {
    DecoderWeights& w = parts_.weights;
    const DecoderConfig& d = parts_.config.decoder;
    const auto whole = [&](Tensor* to) { return copy(from, 0, spec.shape[0], to); };
    if (spec.part == DecoderPart::kEmbedding) return whole(&w.embedding);
    if (spec.part == DecoderPart::kFinalNorm) return whole(&w.final_norm);
    if (spec.part == DecoderPart::kLmHead) return pack({&from}, d.vocab, d.hidden, &w.lm_head);
    DecoderLayerWeights& l = w.layers[static_cast<size_t>(spec.layer)];
    const AttentionConfig& a = d.attention[static_cast<size_t>(d.kind[static_cast<size_t>(spec.layer)])];
    const int64_t qkv = (a.heads + 2 * a.kv_heads) * a.head_dim;
    switch (spec.part) {
      case DecoderPart::kAttentionNorm:
        return whole(&l.attention_norm);
      case DecoderPart::kMoeNorm:
        return whole(&l.moe_norm);
      case DecoderPart::kSinks:
        return whole(&l.attention.sinks);
      case DecoderPart::kQkv:
        return pack_qkv(spec, from, qkv, &l.attention.qkv);
      case DecoderPart::kQkvBias:
        return copy(from, spec.first_row, qkv, &l.attention.qkv_bias);
      case DecoderPart::kO:
        return pack({&from}, d.hidden, a.heads * a.head_dim, &l.attention.o);
      case DecoderPart::kOBias:
        return whole(&l.attention.o_bias);
      default:
        return {};  // of the MoE layer: load_experts
    }
  }

  Status load_experts(int64_t layer) {
    DecoderLayerWeights& l = parts_.weights.layers[static_cast<size_t>(layer)];
    const MoeConfig& m = parts_.config.decoder.moe;
    std::map<DecoderPart, const CheckpointTensor*> t;
    for (size_t i = 0; i < found_.specs.size(); ++i)
      if (found_.specs[i].layer == layer) t[found_.specs[i].part] = found_.tensors[i];
    SLUICE_TRY(copy(*t[DecoderPart::kRouter], 0, 0, &l.moe.router));
    SLUICE_TRY(copy(*t[DecoderPart::kRouterBias], 0, m.experts, &l.moe.router_bias));
    SLUICE_TRY(copy(*t[DecoderPart::kExpertsUpBias], 0, 0, &l.moe.experts.up_bias));
    SLUICE_TRY(copy(*t[DecoderPart::kExpertsDownBias], 0, 0, &l.moe.experts.down_bias));
    const auto pack_all = [&](const CheckpointTensor& b, const CheckpointTensor& s, PanelMatrix matrix,
                              Tensor* w, Tensor* sc) -> Status {
      const PanelShape shape = panel_shape(matrix.features, matrix.gated, matrix.width);
      auto a = take(DType::kU8, {m.experts, shape.code_bytes(true)});
      if (!a.ok()) return a.status();
      auto c = take(DType::kU8, {m.experts, shape.scale_bytes()});
      if (!c.ok()) return c.status();
      *w = a.value(), *sc = c.value();
      auto packed = packed_experts(matrix, m.experts, *w, *sc);
      if (!packed.ok()) return packed.status();
      const int64_t rows = b.shape[1], stride = matrix.width / 2, sstride = matrix.width / 32;
      for (int64_t e = 0; e < m.experts; ++e) {
        const auto span = [&](int64_t first, int64_t step, int64_t count) {
          return RowSpan{.rows = count,
                         .w = b.data + (e * rows + first) * stride,
                         .stride = stride * step,
                         .scales = s.data + (e * rows + first) * sstride,
                         .scale_stride = sstride * step,
                         .first_row = first,
                         .row_step = step,
                         .expert = e,
                         .tensor = &b,
                         .scale_tensor = &s};
        };
        PanelSource src;
        if (matrix.gated) {
          src.rows = {span(0, 2, matrix.features)};
          src.ups = {span(1, 2, matrix.features)};
        } else
          src.rows = {span(0, 1, matrix.features)};
        SLUICE_TRY(pack_expert(&packed.value(), e, src, parts_.device.info().cores, CheckFirst::kNo));
      }
      done_with(b), done_with(s);
      parts_.active_bytes += (elements_of(*w) + elements_of(*sc)) * m.top_k / m.experts;
      return {};
    };
    SLUICE_TRY(pack_all(*t[DecoderPart::kExpertsUp], *t[DecoderPart::kExpertsUpScale],
                        {.features = m.intermediate, .width = m.hidden, .gated = true, .w = DType::kE2M1},
                        &l.moe.experts.up, &l.moe.experts.up_scale));
    return pack_all(*t[DecoderPart::kExpertsDown], *t[DecoderPart::kExpertsDownScale],
                    {.features = m.hidden, .width = m.intermediate, .gated = false, .w = DType::kE2M1},
                    &l.moe.experts.down, &l.moe.experts.down_scale);
  }

  LoadedModel::Parts& parts_;
  const Checkpoint& checkpoint_;
  const LoadOptions& options_;
  Found found_;
  LoadProgress progress_;
  std::vector<const CheckpointTensor*> joined_;
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
  auto parts = std::make_unique<Parts>(device);
  parts->config = std::move(config).value();
  parts->config.decoder = parts->config.decoder.with_layout(device.info().layout).with_activations(options.x);
  const Family* family = nullptr;
  for (const Family* f : families())
    if (f->architecture == parts->config.architecture) family = f;
  auto checkpoint = Checkpoint::open(directory);
  if (!checkpoint.ok()) return checkpoint.status();
  Loader loader(parts.get(), *checkpoint.value(), options);
  SLUICE_TRY(loader.load(*family));
  return std::unique_ptr<LoadedModel>(new LoadedModel(std::move(parts)));
}

}  // namespace sluice
