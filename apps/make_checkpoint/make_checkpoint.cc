#include "apps/make_checkpoint/make_checkpoint.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "apps/common/stand_in_tokenizer.h"
#include "models/draft.h"
#include "models/random_weights.h"
#include "nn/moe/problems.h"
#include "weights/safetensors_writer.h"

namespace sluice::apps {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPiece = 8 << 20;  // bytes per write; a multiple of 8

// A model to imitate. Models of families that Sluice runs are written completely. For other models only the MoE layers are written, in bf16 if the
// model is published in FP8 or NVFP4 and no --quantization is given.
struct Like {
  std::string_view name, architecture;
  MoeNaming naming;
  int64_t layers;           // number of layers, or number of MoE layers if only those are written
  int64_t first_moe_layer;  // index of the first layer with experts
  int64_t step = 1;         // distance between the indices of MoE layers
};
constexpr Like kLike[] = {
    {"gpt-oss-20b", "GptOssForCausalLM", MoeNaming::kGptOss, 24, 0},
    {"gpt-oss-120b", "GptOssForCausalLM", MoeNaming::kGptOss, 36, 0},
    {"deepseek-v4-flash", "DeepseekV4ForCausalLM", MoeNaming::kDeepSeekV4, 43, 0},
    {"deepseek-v4-pro", "DeepseekV4ForCausalLM", MoeNaming::kDeepSeekV4, 61, 0},
    {"deepseek-v4.1-flash", "DeepseekV4ForCausalLM", MoeNaming::kDeepSeekV4, 1,
     0},  // the number of layers is not published
    {"deepseek-v3", "DeepseekV3ForCausalLM", MoeNaming::kDeepSeekV3, 61, 3},
    {"moonlight-16b-a3b", "DeepseekV3ForCausalLM", MoeNaming::kDeepSeekV3, 27, 1},
    {"kimi-k2", "DeepseekV3ForCausalLM", MoeNaming::kDeepSeekV3, 61, 1},
    {"glm-4.5", "Glm4MoeForCausalLM", MoeNaming::kDeepSeekV3, 89, 3},
    {"glm-4.5-air", "Glm4MoeForCausalLM", MoeNaming::kDeepSeekV3, 45, 1},
    {"glm-5", "GlmMoeDsaForCausalLM", MoeNaming::kDeepSeekV3, 75, 3},
    {"glm-5.2", "GlmMoeDsaForCausalLM", MoeNaming::kDeepSeekV3, 75, 3},
    {"glm-5.3-flash", "Glm5NextForConditionalGeneration", MoeNaming::kGlm5Next, 42, 3},
    {"qwen3-30b-a3b", "Qwen3MoeForCausalLM", MoeNaming::kQwen3Moe, 48, 0},
    {"qwen3-235b-a22b", "Qwen3MoeForCausalLM", MoeNaming::kQwen3Moe, 94, 0},
    {"nemotron-3-nano", "NemotronHForCausalLM", MoeNaming::kNemotron3, 23, 0},
    {"nemotron-3-super", "NemotronHForCausalLM", MoeNaming::kNemotron3, 40, 0},
    {"nemotron-3-ultra", "NemotronHForCausalLM", MoeNaming::kNemotron3, 48, 0},
    {"nemotron-3.5-lightning", "NemotronHForCausalLM", MoeNaming::kNemotron3, 23, 0},
    {"minimax-m2", "MiniMaxM2ForCausalLM", MoeNaming::kMiniMaxM2, 62, 0},
    {"minimax-m3", "MiniMaxM3SparseForConditionalGeneration", MoeNaming::kMiniMaxM3, 57, 3},
    {"mistral-large-3", "MistralLarge3ForCausalLM", MoeNaming::kMistralLarge3, 58, 3},
    {"mistral-small-4", "MistralLarge3ForCausalLM", MoeNaming::kMistralLarge3, 36, 0},
    {"mistral-large-4", "MistralLarge4ForConditionalGeneration", MoeNaming::kMistralLarge3, 71, 1},
    {"llama-4-scout", "Llama4ForConditionalGeneration", MoeNaming::kLlama4, 48, 0},
    {"llama-4-maverick", "Llama4ForConditionalGeneration", MoeNaming::kLlama4, 24, 1, 2},
};
// The number of DeepSeek V4's first layers, which choose experts by a hash of the token.
constexpr int64_t kHashLayers = 3;

// In all forms only the experts are quantized. The lists of modules that are not quantized are copied from published
// checkpoints of the form.
constexpr QuantizationForm kForms[] = {
    {"fp8-blocks",
     {DType::kE4M3, WeightScales::kBlocks},
     R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
         "modules_to_not_convert": ["self_attn", "lm_head"]})"},
    {"fp8-rows",
     {DType::kE4M3, WeightScales::kRows},
     R"({"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["re:.*self_attn.*", "lm_head"],
         "config_groups": {"group_0": {"targets": ["Linear"],
                                       "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true},
                                       "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true}}}})"},
    {"mxfp8",
     {DType::kE4M3, WeightScales::kMx},
     R"({"quant_method": "mxfp8", "ignored_layers": ["self_attn", "lm_head"]})"},
    {"mxfp4",
     {DType::kE2M1, WeightScales::kMx},
     R"({"quant_method": "quark", "exclude": ["*self_attn*", "lm_head"],
         "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}}})"},
    {"nvfp4",
     {DType::kE2M1, WeightScales::kNv},
     R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["*self_attn*", "lm_head"]})"},
};

// The form that o.quantization names; null: there is no such form.
const QuantizationForm* form_of(const MakeOptions& o) {
  const auto* form = std::ranges::find(kForms, o.quantization, &QuantizationForm::name);
  return form == std::end(kForms) ? nullptr : form;
}

bool has_router_bias(const Like& like) { return like.naming == MoeNaming::kGptOss; }
bool is_whole(const Like& like) {
  return like.naming == MoeNaming::kGptOss || like.naming == MoeNaming::kQwen3Moe ||
         like.architecture == "DeepseekV3ForCausalLM";
}

// The names of all models for which `wanted` is true, such as "gpt-oss-20b, gpt-oss-120b".
std::string names_of(bool (*wanted)(const Like&)) {
  std::string out;
  for (const Like& like : kLike)
    if (wanted(like)) out += (out.empty() ? "" : ", ") + std::string(like.name);
  return out;
}

Json gpt_oss_config(const Like& like, int64_t layers) {
  const MoeConfig moe = known_moe(like.name).value();
  Json types = Json::array();
  for (int64_t i = 0; i < layers; ++i) types.push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  return {{"architectures", {"GptOssForCausalLM"}},
          {"attention_bias", true},
          {"attention_dropout", 0.0},
          {"eos_token_id", 200002},
          {"experts_per_token", 4},
          {"head_dim", 64},
          {"hidden_act", "silu"},
          {"hidden_size", 2880},
          {"initial_context_length", 4096},
          {"intermediate_size", 2880},
          {"layer_types", types},
          {"max_position_embeddings", 131072},
          {"model_type", "gpt_oss"},
          {"num_attention_heads", 64},
          {"num_experts_per_tok", 4},
          {"num_hidden_layers", layers},
          {"num_key_value_heads", 8},
          {"num_local_experts", moe.experts},
          {"pad_token_id", 199999},
          {"quantization_config", {{"quant_method", "mxfp4"}}},
          {"rms_norm_eps", 1e-5},
          {"rope_scaling",
           {{"beta_fast", 32.0},
            {"beta_slow", 1.0},
            {"factor", 32.0},
            {"original_max_position_embeddings", 4096},
            {"rope_type", "yarn"},
            {"truncate", false}}},
          {"rope_theta", 150000},
          {"sliding_window", 128},
          {"swiglu_limit", 7.0},
          {"tie_word_embeddings", false},
          {"vocab_size", 201088}};
}

Json qwen3_moe_config(const Like& like, int64_t layers) {
  const MoeConfig moe = known_moe(like.name).value();
  return {{"architectures", {"Qwen3MoeForCausalLM"}},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"bos_token_id", 151643},
          {"decoder_sparse_step", 1},
          {"eos_token_id", 151645},
          {"head_dim", 128},
          {"hidden_act", "silu"},
          {"hidden_size", moe.hidden},
          {"intermediate_size", 3 * moe.hidden},
          {"max_position_embeddings", 40960},
          {"max_window_layers", layers},
          {"mlp_only_layers", Json::array()},
          {"model_type", "qwen3_moe"},
          {"moe_intermediate_size", moe.intermediate},
          {"norm_topk_prob", true},
          {"num_attention_heads",
           moe.hidden / 64},  // with head_dim 128, together twice as wide as the hidden state
          {"num_experts", moe.experts},
          {"num_experts_per_tok", moe.top_k},
          {"num_hidden_layers", layers},
          {"num_key_value_heads", 4},
          {"rms_norm_eps", 1e-6},
          {"rope_scaling", nullptr},
          {"rope_theta", 1e6},
          {"sliding_window", nullptr},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"},
          {"use_sliding_window", false},
          {"vocab_size", 151936}};
}

// The shape of a model with DeepSeek V3's architecture, without the experts.
struct DeepSeekShape {
  std::string_view name;
  int64_t heads, q_lora_rank, intermediate, vocab, context, mtp_layers;  // q_lora_rank 0 means null
  double eps, theta, yarn, beta_fast;                                    // yarn: YaRN's factor; 0: no YaRN
  int64_t bos, eos;
};
constexpr DeepSeekShape kDeepSeekShapes[] = {
    {"deepseek-v3", 128, 1536, 18432, 129280, 163840, 1, 1e-6, 1e4, 40, 32, 0, 1},
    {"moonlight-16b-a3b", 16, 0, 11264, 163840, 8192, 0, 1e-5, 5e4, 0, 0, 163584, 163585},
    {"kimi-k2", 64, 1536, 18432, 163840, 131072, 0, 1e-6, 5e4, 32, 1, 163584, 163585},
};

Json deepseek_v3_config(const Like& like, int64_t layers) {
  const MoeConfig moe = known_moe(like.name).value();
  const DeepSeekShape& shape = *std::ranges::find(kDeepSeekShapes, like.name, &DeepSeekShape::name);
  Json rope = nullptr, q_rank = nullptr;
  if (shape.q_lora_rank > 0) q_rank = shape.q_lora_rank;
  if (shape.yarn > 0)
    rope = {{"beta_fast", shape.beta_fast},
            {"beta_slow", 1},
            {"factor", shape.yarn},
            {"mscale", 1.0},
            {"mscale_all_dim", 1.0},
            {"original_max_position_embeddings", 4096},
            {"type", "yarn"}};
  return {{"architectures", {"DeepseekV3ForCausalLM"}},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"bos_token_id", shape.bos},
          {"eos_token_id", shape.eos},
          {"first_k_dense_replace", std::min(like.first_moe_layer, layers - 1)},
          {"hidden_act", "silu"},
          {"hidden_size", moe.hidden},
          {"intermediate_size", shape.intermediate},
          {"kv_lora_rank", 512},
          {"max_position_embeddings", shape.context},
          {"model_type", like.name == "kimi-k2" ? "kimi_k2" : "deepseek_v3"},
          {"moe_intermediate_size", moe.intermediate},
          {"moe_layer_freq", 1},
          {"n_group", moe.groups},
          {"n_routed_experts", moe.experts},
          {"n_shared_experts", moe.shared_intermediate / moe.intermediate},
          {"norm_topk_prob", true},
          {"num_attention_heads", shape.heads},
          {"num_experts_per_tok", moe.top_k},
          {"num_hidden_layers", layers},
          {"num_key_value_heads", shape.heads},
          {"num_nextn_predict_layers", shape.mtp_layers},
          {"q_lora_rank", q_rank},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"rms_norm_eps", shape.eps},
          {"rope_scaling", rope},
          {"rope_theta", shape.theta},
          {"routed_scaling_factor", moe.scale},
          {"scoring_func", "sigmoid"},
          {"tie_word_embeddings", false},
          {"topk_group", moe.topk_groups},
          {"topk_method", "noaux_tc"},
          {"torch_dtype", "bfloat16"},
          {"v_head_dim", 128},
          {"vocab_size", shape.vocab}};
}

// The config.json of a complete model.
Json config_of(const Like& like, int64_t layers) {
  if (like.naming == MoeNaming::kDeepSeekV3) return deepseek_v3_config(like, layers);
  return like.naming == MoeNaming::kQwen3Moe ? qwen3_moe_config(like, layers) : gpt_oss_config(like, layers);
}
// The tensors of a complete model. The tensors of its draft layer, if any, come last.
std::vector<TensorSpec> tensors_of(const Family& family, const ModelConfig& config, MoeNaming naming) {
  std::vector<TensorSpec> out = family.tensors(config, naming);
  if (config.mtp_layers == 0) return out;
  const std::vector<TensorSpec> draft =
      mtp_tensors(mtp_config(config).value(), std::ssize(config.decoder.layers));
  out.insert(out.end(), draft.begin(), draft.end());
  return out;
}
Json generation_config_of(const Like& like) {
  if (like.naming == MoeNaming::kGptOss)
    return {{"do_sample", true}, {"eos_token_id", {200002, 199999, 200012}}};
  if (like.naming == MoeNaming::kDeepSeekV3)
    return {{"do_sample", true},
            {"eos_token_id", std::ranges::find(kDeepSeekShapes, like.name, &DeepSeekShape::name)->eos},
            {"temperature", 0.6},
            {"top_p", 0.95}};
  return {{"do_sample", true},
          {"eos_token_id", {151645, 151643}},
          {"temperature", 0.6},
          {"top_k", 20},
          {"top_p", 0.95}};
}

Status io(const fs::path& path, const std::string& what) { return {Code::kIo, path.string() + ": " + what}; }

Status write_text(const fs::path& path, const Json& json) {
  std::ofstream file(path);
  file << json.dump(2) << "\n";
  file.close();
  if (file) return {};
  return io(path, std::string("cannot be written: ") + std::strerror(errno));
}

Status write_tensors(const fs::path& path, const std::vector<TensorSpec>& all, const RandomOptions& options,
                     const std::string& only, const MakeProgress& progress) {
  std::vector<TensorSpec> specs;
  std::vector<TensorToWrite> tensors;
  for (const TensorSpec& s : all) {
    if (s.name.find(only) == std::string::npos) continue;
    specs.push_back(s);
    tensors.push_back({s.name, s.type, s.shape});
  }
  if (specs.empty())
    return invalid("--only: wanted a part of a tensor's name such as " + all.front().name + ", found " +
                   only);
  auto writer = SafetensorsWriter::create(path.string(), tensors, {{"format", "pt"}});
  if (!writer.ok()) return writer.status();
  RandomWeights random(all, options, 0);
  std::vector<std::byte> piece(static_cast<size_t>(kPiece));
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t bytes = *stored_bytes(tensors[i].type, tensors[i].shape);
    for (int64_t at = 0; at < bytes; at += kPiece) {
      const std::span<std::byte> part(piece.data(), static_cast<size_t>(std::min(bytes - at, kPiece)));
      random.fill(specs[i], at, part);
      SLUICE_TRY(writer.value()->write(part));
      SLUICE_TRY(progress(writer.value()->bytes_written(), writer.value()->bytes()));
    }
  }
  return writer.value()->finish();
}

// The tensors of the MoE layers that nn/moe/load.h reads, for a model without a family.
std::vector<TensorSpec> moe_layers_of(const Like& like, int64_t layers, const QuantizationForm* form) {
  std::vector<TensorSpec> out;
  for (int64_t i = 0; i < layers; ++i) {
    const bool hash = like.naming == MoeNaming::kDeepSeekV4 && i < kHashLayers;
    const auto named = known_moe(std::string(like.name) + (hash ? "-hash" : ""));
    MoeConfig config = named.ok() ? named.value() : known_moe(like.name).value();
    if (form) {
      config.expert_w = config.shared_w = form->format.w;
      config.expert_scales = config.shared_scales = form->format.scales;
    }
    for (TensorSpec& spec : moe_tensors(config, like.naming, like.first_moe_layer + i * like.step))
      out.push_back(std::move(spec));
  }
  return out;
}

Status write_all(const MakeOptions& o, const Like& like, const fs::path& directory,
                 const MakeProgress& progress) {
  const fs::path weights = directory / "model.safetensors";
  const int64_t layers = o.layers ? o.layers : like.layers;
  if (!is_whole(like)) {
    Json config = {{"architectures", {like.architecture}}};
    if (const QuantizationForm* form = form_of(o)) config["quantization_config"] = Json::parse(form->config);
    SLUICE_TRY(write_text(directory / "config.json", config));
    return write_tensors(weights, moe_layers_of(like, layers, form_of(o)), {.seed = o.seed}, o.only,
                         progress);
  }
  Json made = config_of(like, layers);
  if (const QuantizationForm* form = form_of(o)) made["quantization_config"] = Json::parse(form->config);
  SLUICE_TRY(write_text(directory / "config.json", made));
  SLUICE_TRY(write_text(directory / "generation_config.json", generation_config_of(like)));
  const auto tokenizer = stand_in_tokenizer(made["vocab_size"].get<int64_t>());
  if (!tokenizer.ok()) return tokenizer.status();
  SLUICE_TRY(write_text(directory / "tokenizer.json", tokenizer.value()));
  SLUICE_TRY(write_text(directory / "tokenizer_config.json",
                        stand_in_tokenizer_config(made["max_position_embeddings"].get<int64_t>())));
  if (o.weights == MakeOptions::Weights::kLeaveOut) return {};
  // Reads the config that was just written, so that the tensors are exactly those that the loader expects.
  const auto config = read_model_config(directory.string());
  if (!config.ok()) return config.status();
  for (const Family* family : families())
    if (family->architecture == like.architecture)
      return write_tensors(
          weights, tensors_of(*family, config.value(), like.naming),
          {.seed = o.seed, .routing = o.routing, .top_k = config.value().decoder.moe().top_k}, o.only,
          progress);
  return unsupported("no family for " + std::string(like.architecture));
}

const std::string kPartial =
    ".partial-";  // prefix of a folder's name, followed by the id of the process that writes it

// Whether `name` is the folder of a process that no longer exists.
bool is_leftover(const std::string& name) {
  if (!name.starts_with(kPartial)) return false;
  pid_t writer = 0;
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + kPartial.size(), end, writer);
  return error == std::errc() && at == end && writer > 0 && ::kill(writer, 0) != 0 && errno == ESRCH;
}

Status make_empty(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!is_leftover(name))
      return invalid(directory.string() + ": wanted a new or empty directory, found " + name + " in it");
    leftovers.push_back(it->path());
  }
  if (error) return io(directory, "cannot be listed: " + error.message());
  for (const fs::path& leftover : leftovers) {
    fs::remove_all(leftover, error);
    if (error) return io(leftover, "cannot be removed: " + error.message());
  }
  return {};
}

// Moves the weights first and the config last, so that a directory with a config is complete.
Status move_all(const fs::path& from, const fs::path& to) {
  for (const char* name : {"model.safetensors", "tokenizer.json", "tokenizer_config.json",
                           "generation_config.json", "config.json"}) {
    std::error_code error;
    if (!fs::exists(from / name, error)) continue;
    fs::rename(from / name, to / name, error);
    if (error) return io(to / name, "cannot be renamed into place: " + error.message());
  }
  return {};
}

const Like* like_of(const std::string& name) {
  const auto like =
      std::find_if(std::begin(kLike), std::end(kLike), [&](const Like& l) { return l.name == name; });
  return like == std::end(kLike) ? nullptr : like;
}

}  // namespace

std::span<const QuantizationForm> quantization_forms() { return kForms; }

std::string made_text(const MakeOptions& options) {
  const Like* like = like_of(options.like);
  if (!like || is_whole(*like)) return options.like;
  const int64_t layers = options.layers ? options.layers : like->layers;
  const int64_t last = like->first_moe_layer + (layers - 1) * like->step;
  const QuantizationForm* form = form_of(options);
  const bool fp4 = known_moe(like->name).value().expert_w == DType::kE2M1;
  return options.like + ": " + std::to_string(layers) + " MoE layers only, " +
         std::to_string(like->first_moe_layer) + " to " + std::to_string(last) +
         (like->step > 1 ? " by " + std::to_string(like->step) : "") + ", experts in " +
         (form  ? std::string(form->name)
          : fp4 ? "MXFP4"
                : "bf16") +
         ", named as " + std::string(word(like->naming));
}

Status make_checkpoint(const MakeOptions& o, const MakeProgress& progress) {
  const Like* like = like_of(o.like);
  if (!like) {
    std::vector<std::string> known;
    for (const Like& l : kLike) known.emplace_back(l.name);
    return unknown_name("--like", o.like, known);
  }
  if (o.weights == MakeOptions::Weights::kLeaveOut && !is_whole(*like))
    return invalid("--config-only: wanted a model that Sluice runs (" + names_of(is_whole) +
                   "), found --like " + o.like);
  if (o.weights == MakeOptions::Weights::kLeaveOut && !o.only.empty())
    return invalid("--only: cannot be combined with --config-only");
  if (o.weights == MakeOptions::Weights::kLeaveOut && o.seed != 0)
    return invalid(
        "--seed: wanted 0 with --config-only, because --load-format dummy generates the weights of seed 0, "
        "found " +
        std::to_string(o.seed));
  if (o.weights == MakeOptions::Weights::kLeaveOut && o.routing != Routing::kUniform)
    return invalid(
        "--routing: cannot be combined with --config-only; --load-format dummy has its own --routing");
  if (o.routing != Routing::kUniform && !has_router_bias(*like))
    return invalid("--routing zipf: wanted a model whose routers have biases (" + names_of(has_router_bias) +
                   "), found --like " + o.like);
  if (!o.quantization.empty()) {
    std::vector<std::string> forms;
    for (const QuantizationForm& form : kForms) forms.emplace_back(form.name);
    if (!form_of(o)) return unknown_name("--quantization", o.quantization, forms);
    const MoeConfig known = known_moe(like->name).value();
    if (moe_names(like->naming).storage != ExpertStorage::kOneByOne || known.expert_w != DType::kBF16)
      return invalid(
          "--quantization: wanted a model in bf16 with a tensor for each expert, found "
          "--like " +
          o.like);
    const int64_t step = form_of(o)->format.width_step();
    if (expert_width(known) % step || known.intermediate % step)
      return invalid("--quantization " + o.quantization + ": wanted a model whose widths are multiples of " +
                     std::to_string(step) + ", found --like " + o.like);
  }
  if (o.layers < 0 || o.layers > 1000)
    return invalid("--layers: wanted 0 to 1000, found " + std::to_string(o.layers));
  std::error_code error;
  const fs::path directory = o.directory;
  const bool existed = fs::exists(directory, error);
  if (existed) SLUICE_TRY(make_empty(directory));
  if (!existed && !fs::create_directories(directory, error))
    return io(directory, "cannot be created: " + error.message());
  const fs::path partial = directory / (kPartial + std::to_string(::getpid()));
  Status status;
  if (!fs::create_directory(partial, error)) status = io(partial, "cannot be created: " + error.message());
  if (status.ok()) status = write_all(o, *like, partial, progress);
  if (status.ok()) status = move_all(partial, directory);
  fs::remove_all(partial, error);
  if (!status.ok() && !existed) fs::remove(directory, error);
  return status;
}

}  // namespace sluice::apps
