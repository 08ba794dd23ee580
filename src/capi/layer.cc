#include "backends/backends.h"
#include "capi/launch_args.h"
#include "capi/layer_options.h"
#include "nn/moe/problems.h"

using namespace sluice;        // NOLINT: the C boundary names every type of the library
using namespace sluice::capi;  // NOLINT

namespace {

Status need_weights(const sluice_layer& layer) {
  if (layer.has_weights) return {};
  return invalid("layer: wanted weights (sluice_layer_load or sluice_layer_read_packed), found none");
}

// Updates has_weights after loading. Every error except a device fault is found before existing weights are overwritten, so they stay valid.
Status loaded(sluice_layer* layer, Status status) {
  layer->has_weights = status.ok() || (layer->has_weights && status.code != Code::kDevice);
  return status;
}

// The caller's tensors by name, with their naming and layer.
struct CallersWeights {
  std::unique_ptr<Checkpoint> tensors;
  MoeNaming naming;
  int64_t layer;
};

Result<CheckpointTensor> tensor_of(const sluice_weight& from, size_t index) {
  const std::string place = "weights: tensors[" + std::to_string(index) + "]";
  if (!from.name) return invalid(place + ".name: wanted a name, found null");
  const std::string named = "weights: " + std::string(from.name) + ": ";
  if (!from.type) return invalid(named + "type: wanted a name, found null");
  const auto type = stored_type(from.type);
  if (!type)
    return invalid(named + "type: wanted a type of safetensors (BF16, F32, U8, ...), found '" + from.type +
                   "'");
  if (from.where != SLUICE_CPU && from.where != SLUICE_CUDA)
    return invalid(named + "where: wanted a sluice_backend, found " + std::to_string(from.where));
  if (from.rank < 0 || from.rank > kStoredRankMax)
    return invalid(named + "rank: wanted 0 to " + std::to_string(kStoredRankMax) + ", found " +
                   std::to_string(from.rank));
  if (from.rank > 0 && !from.shape) return invalid(named + "shape: wanted a pointer, found null");
  if (from.bytes > static_cast<size_t>(INT64_MAX))
    return invalid(named + "bytes: wanted less than 2^63, found " + std::to_string(from.bytes));
  const std::vector<int64_t> shape(from.shape, from.shape + from.rank);
  for (const int64_t size : shape)
    if (size < 0) return invalid(named + "shape: wanted sizes of 0 or more, found " + std::to_string(size));
  const auto bytes = stored_bytes(*type, shape);
  if (!bytes || *bytes != static_cast<int64_t>(from.bytes))
    return invalid(named + "wanted " + (bytes ? std::to_string(*bytes) : "less than 2^63") + " bytes for " +
                   stored_text(*type, shape) + ", found " + std::to_string(from.bytes));
  return CheckpointTensor{.name = from.name,
                          .type = *type,
                          .shape = shape,
                          .data = static_cast<const std::byte*>(from.data),
                          .where = static_cast<Backend>(from.where)};
}

Result<MoeNaming> naming_of(const char* wanted, const Checkpoint& tensors) {
  if (!wanted) return detect(tensors);
  std::string known;
  for (size_t i = 0; i < std::size(EnumWords<MoeNaming>::words); ++i) {
    if (!has_experts(static_cast<MoeNaming>(i))) continue;
    if (EnumWords<MoeNaming>::words[i] == wanted) return static_cast<MoeNaming>(i);
    known += (i ? ", " : "") + std::string(EnumWords<MoeNaming>::words[i]);
  }
  return invalid("naming: wanted one of " + known + ", found '" + wanted + "'");
}

Result<int64_t> layer_of(int64_t wanted, const Checkpoint& tensors, MoeNaming naming) {
  if (wanted >= 0) return wanted;
  if (wanted != -1)
    return invalid("weights.layer: wanted -1 (the only layer) or more, found " + std::to_string(wanted));
  const std::vector<int64_t> layers = moe_layers(tensors, naming);
  if (layers.size() == 1) return layers[0];
  std::string found;
  for (size_t i = 0; i < layers.size() && i < 8; ++i) found += (i ? ", " : "") + std::to_string(layers[i]);
  return invalid("weights.layer: wanted a number, because the tensors named as in " +
                 std::string(word(naming)) + " do not belong to exactly one layer, found " +
                 (layers.empty() ? "none" : "layers " + found + (layers.size() > 8 ? ", ..." : "")));
}

Result<std::unique_ptr<Checkpoint>> tensors_of(const sluice_weights* from) {
  if (Status status = need_pointer(from, "weights"); !status.ok()) return status;
  if (from->count > 0)
    if (Status status = need_pointer(from->tensors, "weights.tensors"); !status.ok()) return status;
  std::vector<CheckpointTensor> tensors;
  for (size_t i = 0; i < from->count; ++i) {
    auto tensor = tensor_of(from->tensors[i], i);
    if (!tensor.ok()) return tensor.status();
    tensors.push_back(std::move(tensor).value());
  }
  return Checkpoint::of_memory("weights", std::move(tensors));
}
Result<CallersWeights> weights_of(const sluice_weights* from) {
  auto named = tensors_of(from);
  if (!named.ok()) return named.status();
  const auto naming = naming_of(from->naming, *named.value());
  if (!naming.ok()) return naming.status();
  const auto layer = layer_of(from->layer, *named.value(), naming.value());
  if (!layer.ok()) return layer.status();
  return CallersWeights{std::move(named).value(), naming.value(), layer.value()};
}

// Binds the tensors of a run by name.
Status bind(std::span<const NamedTensor> args, const MoeConfig& config, MoeIo* io, int64_t* tokens) {
  for (const NamedTensor& arg : args) {
    Tensor* to = nullptr;
    for_each_io(config, 0, [&](const SlotSpec& spec, Tensor MoeIo::*member) {
      if (spec.name == arg.name) to = &(io->*member);
    });
    if (!to) {
      std::vector<std::string> known;
      for_each_io(config, 0, [&](const SlotSpec& spec, Tensor MoeIo::*) { known.emplace_back(spec.name); });
      return unknown_name("tensor", arg.name, known);
    }
    if (to->present()) return invalid(std::string(arg.name) + ": given twice");
    if (!arg.tensor.present()) return invalid(std::string(arg.name) + ": null pointer");
    *to = arg.tensor;
  }
  if (!io->x.present()) return invalid("x: missing: wanted [tokens, " + std::to_string(config.hidden) + "]");
  if (io->x.rank != 2)
    return invalid("x: rank: wanted 2 ([tokens, hidden]), found " + std::to_string(io->x.rank));
  *tokens = io->x.shape[0];
  Status status;
  for_each_io(config, *tokens, [&](const SlotSpec& spec, Tensor MoeIo::*member) {
    if (status.ok() && spec.used && !(io->*member).present())
      status = invalid(std::string(spec.name) + ": missing: wanted " + text(spec.dtype) +
                       shape_text(spec.shape.data(), spec.rank));
  });
  return status;
}

Result<std::shared_ptr<const Moe>> planned_for(const sluice_device& device, const LayerOptions& o) {
  return device.moes.get(*device.device, o.local, o.tokens_max, o.policy, o.backend);
}

// Writes two lines per stage: its kernel and its problem. The stages of a fused kernel are written as one, such as "router+route".
std::string explain_at(int64_t tokens, const Step& step) {
  std::string out = "tokens   " + std::to_string(tokens) + "\n";
  const std::vector<StageKernel> kernels = step.kernels(tokens);
  const std::vector<PieceProblem> problems = step.problems(tokens);
  for (size_t i = 0; i < kernels.size(); ++i) {
    const std::string& stage = kernels[i].stage;
    out += "  " + stage + std::string(stage.size() < 14 ? 14 - stage.size() : 1, ' ') + kernels[i].kernel +
           "\n" + std::string(16, ' ') + std::string(problems[i].problem->op()) + " " +
           problems[i].problem->text() + "\n";
  }
  return out;
}

Status check_tokens(const int64_t* tokens, size_t count, int64_t tokens_max) {
  if (count > 0) SLUICE_TRY(need_pointer(tokens, "tokens"));
  for (size_t i = 0; i < count; ++i)
    if (tokens[i] < 0 || tokens[i] > tokens_max)
      return invalid("tokens[" + std::to_string(i) + "]: wanted 0 to " + std::to_string(tokens_max) +
                     " (the layer's tokens_max), found " + std::to_string(tokens[i]));
  return {};
}

std::string explain_head(const std::string& layer, const DeviceInfo& device) {
  return "layer    " + layer + "\ndevice   " + text(device) + "\n";
}

}  // namespace

extern "C" {

sluice_status sluice_layer_create(sluice_device* device, const sluice_layer_options* options,
                                  sluice_layer** out, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(device, "device"));
    SLUICE_TRY(need_pointer(out, "out"));
    Device& on = *device->device;
    const auto read = read_layer_options(options, on.info().backend);
    if (!read.ok()) return read.status();
    const LayerOptions& wanted = read.value();
    auto moe = planned_for(*device, wanted);
    if (!moe.ok()) return moe.status();
    auto weights = LoadedMoe::allocate(on, wanted.whole, wanted.load);
    if (!weights.ok()) return weights.status();
    auto handle = std::make_unique<sluice_layer>();
    handle->moe = std::move(moe).value();
    handle->weights = std::move(weights).value();
    handle->device = &on;
    handle->tokens_max = wanted.tokens_max;
    handle->text = fields_text(wanted.local);
    *out = handle.release();
    return {};
  });
}

sluice_status sluice_layer_measure(sluice_device* device, const sluice_layer_options* options,
                                   size_t* weight_bytes, size_t* workspace_bytes, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(device, "device"));
    const auto wanted = read_layer_options(options, device->device->info().backend);
    if (!wanted.ok()) return wanted.status();
    const auto moe = planned_for(*device, wanted.value());
    if (!moe.ok()) return moe.status();
    if (weight_bytes) *weight_bytes = static_cast<size_t>(moe_weight_bytes(wanted.value().local));
    if (workspace_bytes) *workspace_bytes = moe.value()->workspace_bytes();
    return {};
  });
}

void sluice_layer_destroy(sluice_layer* layer) { delete layer; }

const char* sluice_layer_text(const sluice_layer* layer) { return layer ? layer->text.c_str() : ""; }

size_t sluice_layer_workspace_bytes(const sluice_layer* layer) {
  return layer ? layer->moe->workspace_bytes() : 0;
}

size_t sluice_layer_weight_bytes(const sluice_layer* layer) {
  return layer ? static_cast<size_t>(layer->weights->bytes()) : 0;
}

sluice_status sluice_layer_load(sluice_layer* layer, const sluice_weights* weights, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(layer, "layer"));
    const auto from = weights_of(weights);
    if (!from.ok()) return from.status();
    // If the layer has weights, everything is checked before the first byte is written, because a late error would destroy these weights.
    const CheckFirst check = layer->has_weights ? CheckFirst::kYes : CheckFirst::kNo;
    return loaded(layer, layer->weights->replace(*from.value().tensors, from.value().naming,
                                                 from.value().layer, check));
  });
}

sluice_status sluice_layer_replace_expert(sluice_layer* layer, int64_t expert, const sluice_weights* weights,
                                          sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(layer, "layer"));
    SLUICE_TRY(need_weights(*layer));
    const auto from = weights_of(weights);
    if (!from.ok()) return from.status();
    return layer->weights->replace_expert(*from.value().tensors, expert, from.value().naming,
                                          from.value().layer);
  });
}

sluice_status sluice_layer_replace_adapter(sluice_layer* layer, int64_t adapter,
                                           const sluice_weights* weights, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(layer, "layer"));
    SLUICE_TRY(need_weights(*layer));
    const auto from = tensors_of(weights);
    if (!from.ok()) return from.status();
    return layer->weights->replace_adapter(*from.value(), adapter);
  });
}

sluice_status sluice_layer_packed_bytes(const sluice_layer* layer, size_t* out, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(layer, "layer"));
    SLUICE_TRY(need_pointer(out, "out"));
    const auto bytes = layer->weights->packed_bytes();
    if (!bytes.ok()) return bytes.status();
    *out = static_cast<size_t>(bytes.value());
    return {};
  });
}

sluice_status sluice_layer_write_packed(const sluice_layer* layer, sluice_sink sink, void* context,
                                        sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(layer, "layer"));
    SLUICE_TRY(need_pointer(reinterpret_cast<const void*>(sink), "sink"));
    SLUICE_TRY(need_weights(*layer));
    return layer->weights->write_packed([&](std::span<const std::byte> piece) -> Status {
      return callback_status("sink", static_cast<int32_t>(sink(context, piece.data(), piece.size())));
    });
  });
}

sluice_status sluice_layer_read_packed(sluice_layer* layer, const void* bytes, size_t count,
                                       sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(layer, "layer"));
    SLUICE_TRY(need_pointer(bytes, "bytes"));
    return loaded(layer, layer->weights->read_packed({static_cast<const std::byte*>(bytes), count}));
  });
}

sluice_status sluice_layer_run(const sluice_layer* layer, const sluice_launch* launch, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(layer, "layer"));
    SLUICE_TRY(need_weights(*layer));
    LaunchArgs with;
    SLUICE_TRY(with.read(launch));
    MoeIo io;
    int64_t tokens = 0;
    SLUICE_TRY(bind(with.args(), layer->moe->config(), &io, &tokens));
    if (tokens < 0 || tokens > layer->tokens_max)
      return invalid("x: wanted 0 to " + std::to_string(layer->tokens_max) +
                     " tokens (the layer's tokens_max), found " + std::to_string(tokens));
    return layer->moe->forward(io, layer->weights->weights(), with.workspace(), with.stream());
  });
}

sluice_status sluice_layer_explain(const sluice_layer* layer, const int64_t* tokens, size_t count,
                                   sluice_text* out, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(layer, "layer"));
    SLUICE_TRY(need_pointer(out, "out"));
    SLUICE_TRY(check_tokens(tokens, count, layer->tokens_max));
    std::string all = explain_head(layer->text, layer->device->info());
    for (size_t i = 0; i < count; ++i) all += explain_at(tokens[i], layer->moe->step());
    return write_whole(all, out);
  });
}

sluice_status sluice_layer_describe(const sluice_layer_question* question, const int64_t* tokens,
                                    size_t count, sluice_text* out, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(question, "question"));
    SLUICE_TRY(need_pointer(out, "out"));
    const auto device = asked_device(question->device, question->device_name);
    if (!device.ok()) return device.status();
    const auto read = read_layer_options(question->options, device.value().backend);
    if (!read.ok()) return read.status();
    const LayerOptions& wanted = read.value();
    SLUICE_TRY(check_tokens(tokens, count, wanted.tokens_max));
    std::string all = explain_head(fields_text(wanted.local), device.value());
    const auto add = [&](const Step& step) {
      for (size_t i = 0; i < count; ++i) all += explain_at(tokens[i], step);
    };
    if (question->device) {
      const auto moe = planned_for(*question->device, wanted);
      if (!moe.ok()) return moe.status();
      add(moe.value()->step());
    } else {
      const auto step = plan_moe(device.value(), all_candidates(), wanted.local, wanted.tokens_max,
                                 wanted.policy, wanted.backend);
      if (!step.ok()) return step.status();
      add(step.value());
    }
    return write_whole(all, out);
  });
}

sluice_status sluice_layer_fields(const char* model, sluice_field_visitor visit, void* context,
                                  sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(reinterpret_cast<const void*>(visit), "visit"));
    MoeConfig config;
    if (model) {
      auto known = known_moe(model);
      if (!known.ok()) return known.status();
      config = std::move(known).value();
    }
    for_each_field(config, [&](const Field& f) { visit_field(f, visit, context); });
    return {};
  });
}

sluice_status sluice_layer_tensors(const sluice_layer* layer, int64_t tokens, sluice_slot_visitor visit,
                                   void* context, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(layer, "layer"));
    SLUICE_TRY(need_pointer(reinterpret_cast<const void*>(visit), "visit"));
    if (tokens < 0 || tokens > layer->tokens_max)
      return invalid("tokens: wanted 0 to " + std::to_string(layer->tokens_max) + ", found " +
                     std::to_string(tokens));
    for_each_io(layer->moe->config(), tokens,
                [&](const SlotSpec& spec, Tensor MoeIo::*) { visit_slot(spec, visit, context); });
    return {};
  });
}

}  // extern "C"
