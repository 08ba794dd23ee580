#include "apps/make_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "apps/random_tensor.h"
#include "models/family.h"
#include "weights/safetensors_writer.h"

namespace sluice::apps {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPiece = 8 << 20;  // bytes written at a time; a multiple of 8

// What a gpt-oss model's config.json says beyond what all of them share.
struct GptOssShape {
  std::string_view name;
  int64_t layers, experts;
};
constexpr GptOssShape kGptOss[] = {{"gpt-oss-20b", 24, 32}, {"gpt-oss-120b", 36, 128}};

Json gpt_oss_config(const GptOssShape& shape, int64_t layers) {
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
          {"num_local_experts", shape.experts},
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

// What to fill a tensor with, and the length of the sums that its weights stand in.
struct Contents {
  Fill fill;
  int64_t width;
};
Contents contents_of(const TensorSpec& spec) {
  const int64_t last = spec.shape.back();
  switch (spec.part) {
    case DecoderPart::kEmbedding:
    case DecoderPart::kSinks:
      return {Fill::kUnit, 1};
    case DecoderPart::kFinalNorm:
    case DecoderPart::kAttentionNorm:
    case DecoderPart::kMoeNorm:
      return {Fill::kNorm, 1};
    case DecoderPart::kLmHead:
    case DecoderPart::kQkv:
    case DecoderPart::kO:
    case DecoderPart::kRouter:
      return {Fill::kWeight, last};
    case DecoderPart::kExpertsUp:
    case DecoderPart::kExpertsDown:
      return {Fill::kMxfp4Codes, 1};
    case DecoderPart::kExpertsUpScale:
    case DecoderPart::kExpertsDownScale:
      return {Fill::kMxfp4Scales, last * kMxBlock};
    default:
      return {Fill::kBias, 1};
  }
}

Status write_text(const fs::path& path, const Json& json) {
  std::ofstream file(path);
  file << json.dump(2) << "\n";
  file.close();
  if (file) return {};
  return {Code::kIo, path.string() + ": cannot be written"};
}

Status write_tensors(const fs::path& path, const std::vector<TensorSpec>& specs, uint64_t seed,
                     const std::function<void(int64_t, int64_t)>& progress) {
  std::vector<TensorToWrite> tensors;
  for (const TensorSpec& s : specs) tensors.push_back({s.name, *stored_type(s.dtype), s.shape});
  auto writer = SafetensorsWriter::create(path.string(), tensors, {{"format", "pt"}});
  if (!writer.ok()) return writer.status();
  RandomFill random(seed);
  std::vector<std::byte> piece(static_cast<size_t>(kPiece));
  for (size_t i = 0; i < specs.size(); ++i) {
    const Contents contents = contents_of(specs[i]);
    for (int64_t left = *stored_bytes(tensors[i].type, tensors[i].shape); left > 0;) {
      const std::span<std::byte> part(piece.data(), static_cast<size_t>(std::min(left, kPiece)));
      random.fill(contents.fill, contents.width, part);
      SLUICE_TRY(writer.value()->write(part));
      left -= static_cast<int64_t>(part.size());
      if (progress) progress(writer.value()->bytes_written(), writer.value()->bytes());
    }
  }
  return writer.value()->finish();
}

Status write_all(const MakeOptions& o, const GptOssShape& shape,
                 const std::function<void(int64_t, int64_t)>& progress) {
  const fs::path directory = o.directory;
  SLUICE_TRY(
      write_text(directory / "config.json", gpt_oss_config(shape, o.layers ? o.layers : shape.layers)));
  SLUICE_TRY(write_text(directory / "generation_config.json",
                        {{"do_sample", true}, {"eos_token_id", {200002, 199999, 200012}}}));
  // The list of tensors is what the loader will ask for: read from the config that was just written.
  const auto config = read_model_config(o.directory);
  if (!config.ok()) return config.status();
  for (const Family* family : families())
    if (family->architecture == config.value().architecture)
      return write_tensors(directory / "model.safetensors",
                           family->tensors(config.value(), Naming::kHuggingFace), o.seed, progress);
  return unsupported("no family for " + config.value().architecture);
}

}  // namespace

Status make_checkpoint(const MakeOptions& o, const std::function<void(int64_t, int64_t)>& progress) {
  const auto shape = std::find_if(std::begin(kGptOss), std::end(kGptOss),
                                  [&](const GptOssShape& s) { return s.name == o.like; });
  if (shape == std::end(kGptOss)) {
    std::vector<std::string> known;
    for (const GptOssShape& s : kGptOss) known.emplace_back(s.name);
    return unknown_name("--like", o.like, known);
  }
  if (o.layers < 0 || o.layers > 1000)
    return invalid("--layers: wanted 0 to 1000, found " + std::to_string(o.layers));
  std::error_code error;
  const bool existed = fs::exists(o.directory, error);
  if (existed && !fs::is_empty(o.directory, error))
    return invalid(o.directory + ": wanted a directory that is empty or not there, found one with files");
  if (!existed && !fs::create_directories(o.directory, error))
    return {Code::kIo, o.directory + ": cannot be made: " + error.message()};
  const Status status = write_all(o, *shape, progress);
  if (!status.ok()) {
    for (const char* name : {"config.json", "generation_config.json"})
      fs::remove(fs::path(o.directory) / name, error);
    if (!existed) fs::remove(o.directory, error);
  }
  return status;
}

}  // namespace sluice::apps
