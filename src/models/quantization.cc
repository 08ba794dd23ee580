// Reads the quantization_config of config.json, or hf_quant_config.json.
//
// Sources  code in transformers and vLLM that reads fp8, mxfp8, compressed-tensors, modelopt and quark;
//          deepseek-ai/DeepSeek-V3 config.json.
#include "models/quantization.h"

#include <algorithm>
#include <filesystem>

#include "models/read_config.h"
#include "models/read_decoder.h"
#include "nn/moe/problems.h"
#include "weights/stored_matrix.h"

namespace sluice {
namespace {

constexpr WeightFormat kFp8Blocks{DType::kE4M3, WeightScales::kBlocks};
constexpr WeightFormat kFp8Rows{DType::kE4M3, WeightScales::kRows};
constexpr WeightFormat kMxfp8{DType::kE4M3, WeightScales::kMx};
constexpr WeightFormat kMxfp4{DType::kE2M1, WeightScales::kMx};
constexpr WeightFormat kNvfp4{DType::kE2M1, WeightScales::kNv};

const std::string kModels = "supported quantized";

Status unknown(const JsonAt& at, const std::string& wanted) { return unsupported(at.wrong(wanted).message); }

// Reads a key whose value must be one of several words.
Result<std::string> word_of(const JsonAt& q, const std::string& key,
                            std::initializer_list<std::string_view> words) {
  const auto value = q.string(key);
  if (!value.ok()) return value;
  if (std::ranges::find(words, value.value()) != words.end()) return value;
  std::string wanted;
  for (const std::string_view word : words) {
    if (!wanted.empty()) wanted += word == *(words.end() - 1) ? " or " : ", ";
    wanted += word;
  }
  return unknown(q.at(key).value(), wanted);
}

Result<WeightFormat> read_fp8(const JsonAt& q) {
  SLUICE_TRY(must_be(q, "fmt", "e4m3", kModels));
  SLUICE_TRY(must_be(q, "expert_dtype", "fp8", kModels));
  // Without blocks, each matrix has one scale.
  if (!q.has("weight_block_size")) return kFp8Rows;
  SLUICE_TRY(must_be(q, "weight_block_size", Json::array({kF8Block, kF8Block}), kModels));
  return kFp8Blocks;
}

// Reads one group of modules of a compressed-tensors config.
Result<WeightFormat> read_group(const JsonAt& group, const std::string& form) {
  const auto weights = group.at("weights");
  if (!weights.ok()) return weights.status();
  const JsonAt& w = weights.value();
  SLUICE_TRY(w.need_object());
  SLUICE_TRY(must_be(w, "type", "float", kModels));
  SLUICE_TRY(must_be(w, "symmetric", true, kModels));
  SLUICE_TRY(must_be(w, "num_bits", form == "float-quantized" ? 8 : 4, kModels));
  if (form == "nvfp4-pack-quantized") {
    SLUICE_TRY(must_be(w, "group_size", kNvBlock, kModels));
    return kNvfp4;
  }
  if (form == "mxfp4-pack-quantized") {
    SLUICE_TRY(must_be(w, "group_size", kMxBlock, kModels));
    return kMxfp4;
  }
  const auto strategy = word_of(w, "strategy", {"channel", "tensor", "block"});
  if (!strategy.ok()) return strategy.status();
  if (strategy.value() != "block") return kFp8Rows;
  SLUICE_TRY(must_be(w, "block_structure", Json::array({kF8Block, kF8Block}), kModels));
  return kFp8Blocks;
}

Result<WeightFormat> read_compressed_tensors(const JsonAt& q) {
  const auto form = word_of(q, "format", {"float-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized"});
  if (!form.ok()) return form.status();
  if (q.has("sparsity_config")) {
    const auto sparsity = q.at("sparsity_config");
    SLUICE_TRY(sparsity.value().need_object());
    SLUICE_TRY(must_be(sparsity.value(), "format", "dense", kModels));
  }
  const auto groups = q.at("config_groups");
  if (!groups.ok()) return groups.status();
  SLUICE_TRY(groups.value().need_object());
  std::optional<WeightFormat> out;
  for (const auto& [name, unused] : groups.value().value().items()) {
    const JsonAt group = groups.value().at(name).value();
    SLUICE_TRY(group.need_object());
    SLUICE_TRY(must_be(group, "format", form.value(), kModels));
    const auto format = read_group(group, form.value());
    if (!format.ok()) return format;
    if (out && *out != format.value())
      return unknown(group, "weights of all groups in one format (" + text(*out) + ")");
    out = format.value();
  }
  if (!out) return unknown(groups.value(), "at least one group");
  return *out;
}

// `q` has quant_algo, or an object "quantization" that has it.
Result<WeightFormat> read_modelopt(const JsonAt& q) {
  if (q.has("quantization")) {
    const auto inner = q.at("quantization");
    SLUICE_TRY(inner.value().need_object());
    return read_modelopt(inner.value());
  }
  const auto algorithm =
      word_of(q, "quant_algo", {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8", "NVFP4", "W4A16_NVFP4"});
  if (!algorithm.ok()) return algorithm.status();
  if (algorithm.value().starts_with("FP8")) return kFp8Rows;
  const bool mxfp8 = algorithm.value() == "MXFP8";
  SLUICE_TRY(must_be(q, "group_size", mxfp8 ? kMxBlock : kNvBlock, kModels));
  return mxfp8 ? kMxfp8 : kNvfp4;
}

Result<WeightFormat> read_quark(const JsonAt& q) {
  const auto global = q.at("global_quant_config");
  if (!global.ok()) return global.status();
  SLUICE_TRY(global.value().need_object());
  const auto weight = global.value().at("weight");
  if (!weight.ok()) return weight.status();
  SLUICE_TRY(weight.value().need_object());
  SLUICE_TRY(weight.value().string("dtype").status());
  SLUICE_TRY(must_be(weight.value(), "dtype", "fp4", kModels));
  SLUICE_TRY(must_be(weight.value(), "qscheme", "per_group", kModels));
  SLUICE_TRY(must_be(weight.value(), "group_size", kMxBlock, kModels));
  return kMxfp4;
}

bool matches_file(const std::optional<WeightFormat>& stored, WeightFormat wanted) {
  return !stored || !stored->scaled() || *stored == wanted;
}

// The name of a format in error messages.
std::string config_text(WeightFormat f) {
  if (f == kFp8Blocks) return "FP8 in blocks of 128 x 128";
  if (f == kFp8Rows) return "FP8 with a scale for each channel or tensor";
  if (f == kMxfp8) return "MXFP8";
  if (f == kMxfp4) return "MXFP4";
  return f == kNvfp4 ? "NVFP4" : "bf16";
}

}  // namespace

Status check_transforms(const JsonAt& config) {
  if (!config.has("quantization_config")) return {};
  const JsonAt q = config.at("quantization_config").value();
  if (!q.value().is_object() || !q.has("transform_config")) return {};
  const JsonAt transforms = q.at("transform_config").value();
  SLUICE_TRY(transforms.need_object());
  if (!transforms.has("config_groups") || transforms.value()["config_groups"].empty()) return {};
  return unknown(transforms, "no config_groups (no transforms)");
}

Result<WeightFormat> read_quantization(const JsonAt& config, const std::string& directory) {
  if (!config.has("quantization_config")) {
    const std::string path = directory + "/hf_quant_config.json";
    std::error_code error;
    if (!std::filesystem::exists(path, error) || error) return WeightFormat{};
    const Result<Json> json = read_json(path, kConfigBytesMax);
    if (!json.ok()) return json.status();
    const JsonAt root(json.value(), path);
    SLUICE_TRY(root.need_object());
    return read_modelopt(root);
  }
  const JsonAt q = config.at("quantization_config").value();
  SLUICE_TRY(q.need_object());
  const auto method = word_of(q, "quant_method", {"fp8", "mxfp8", "compressed-tensors", "modelopt", "quark"});
  if (!method.ok()) return method.status();
  if (method.value() == "fp8") return read_fp8(q);
  if (method.value() == "mxfp8") return kMxfp8;
  if (method.value() == "compressed-tensors") return read_compressed_tensors(q);
  return method.value() == "modelopt" ? read_modelopt(q) : read_quark(q);
}

Status set_format_of_experts(const JsonAt& config, WeightFormat format, ModelConfig* model) {
  for (LayerConfig& layer : model->decoder.layers) {
    MoeConfig& mlp = layer.mlp;
    if (mlp.dense) continue;
    const std::string wanted =
        "a multiple of " + std::to_string(format.width_step()) + " (blocks of " + config_text(format) + ")";
    if (mlp.hidden % format.width_step()) return refused(config, "hidden_size", wanted);
    if (mlp.intermediate % format.width_step()) return refused(config, "moe_intermediate_size", wanted);
    mlp.expert_w = format.w, mlp.expert_scales = format.scales;
    if (mlp.shared_intermediate == 0) continue;
    mlp.shared_w = format.w, mlp.shared_scales = format.scales;
    mlp.shared_as_slots = shared_fits_slots(mlp);
  }
  return {};
}

Status fit_experts_to_files(const Checkpoint& files, MoeNaming naming, int64_t layer, MoeConfig* mlp) {
  const MoeNames& names = moe_names(naming);
  const WeightFormat wanted{mlp->expert_w, mlp->expert_scales};
  const std::string down = tensor_name(names.down, layer);
  const auto stored = stored_format(files, down, mlp->hidden, mlp->intermediate);
  if (!matches_file(stored, wanted))
    return {Code::kCorrupt, "config.json: quantization_config: wanted one for experts in " +
                                config_text(*stored) + ", the format of " +
                                place_of(*tensors_of_matrix(files, down).front()) + ", found " +
                                (wanted.scaled() ? "one for " + config_text(wanted) : "no such key")};
  if (stored && !stored->scaled()) mlp->expert_w = DType::kBF16, mlp->expert_scales = WeightScales::kMx;
  if (mlp->shared_intermediate == 0) return {};
  const WeightFormat experts{mlp->expert_w, mlp->expert_scales};
  const auto shared =
      stored_format(files, tensor_name(names.shared_down, layer), mlp->hidden, mlp->shared_intermediate);
  const WeightFormat kept = shared && *shared != experts ? WeightFormat{} : experts;
  mlp->shared_w = kept.w, mlp->shared_scales = kept.scales;
  mlp->shared_as_slots = shared_fits_slots(*mlp);
  return {};
}

Status fit_formats_to_files(const Checkpoint& files, MoeNaming naming, ModelConfig* model) {
  SLUICE_TRY(fit_head_to_files(files, model));
  int64_t number = -1;
  for (LayerConfig& layer : model->decoder.layers)
    if (++number; !layer.mlp.dense) SLUICE_TRY(fit_experts_to_files(files, naming, number, &layer.mlp));
  return {};
}

}  // namespace sluice
