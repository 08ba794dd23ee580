#include "apps/serve/other_servers.h"

#include <algorithm>
#include <string_view>

#include "models/family.h"
#include "models/read_config.h"

namespace sluice::apps {
namespace {

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    out.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

Status check_parser(const std::string& flag, const std::string& found, std::string_view names,
                    const ChatFormat& format) {
  std::vector<std::string> known = words_of(names);
  known.insert(known.begin(), "auto");
  if (std::find(known.begin(), known.end(), found) != known.end()) return {};
  const std::string why = format.usable().ok()
                              ? "names of the model's chat format, " + std::string(format.name())
                              : "the model's chat format is unknown: --chat-format";
  return invalid(flag + ": wanted " + joined(known) + " (" + why + "), found '" + found + "'");
}

// The formats in which a checkpoint stores its weights.
struct Stored {
  WeightFormat experts;
  bool fp8 = false;         // whether some weights are FP8, even if the experts are not
  std::string method = {};  // quant_method of the config's quantization_config; empty: none
};

Result<Stored> stored_weights(const ModelFlags& model) {
  const auto directory = model_directory(model.model);
  if (!directory.ok()) return directory.status();
  auto config = read_model_config(directory.value());
  if (!config.ok()) return config.status();
  const auto load = load_format_of(model.load_format);
  if (!load.ok()) return load.status();
  Stored out;
  if (load.value() != LoadFormat::kDummy) {
    const auto files = Checkpoint::open(directory.value());
    if (!files.ok()) return files.status();
    SLUICE_TRY(fit_to_files(*files.value(), &config.value()));
    const auto& tensors = files.value()->tensors();
    out.fp8 = std::any_of(tensors.begin(), tensors.end(),
                          [](const CheckpointTensor& t) { return t.type == StoredType::kF8E4M3; });
  }
  const auto json = read_json(directory.value() + "/config.json", kConfigBytesMax);
  if (!json.ok()) return json.status();
  const JsonAt top(json.value(), "config.json");
  if (top.has("quantization_config")) {
    const auto method = top.at("quantization_config").value().string("quant_method", "");
    if (method.ok()) out.method = method.value();
  }
  const MoeConfig& moe = config.value().decoder.moe();
  out.experts = {moe.expert_w, moe.expert_scales};
  return out;
}

// Other servers' name of the format, and a description of what the checkpoint has.
std::pair<std::string, std::string> name_of(const Stored& stored) {
  const WeightFormat f = stored.experts;
  if (f.w == DType::kE2M1)
    return f.scales == WeightScales::kNv ? std::pair("nvfp4", "NVFP4 experts")
                                         : std::pair("mxfp4", "MXFP4 experts");
  if (f.is(DType::kE4M3, WeightScales::kMx)) return {"mxfp8", "MXFP8 experts"};
  if (f.is(DType::kE4M3, WeightScales::kRows)) return {"fp8", "FP8 weights"};
  if (f.w == DType::kE4M3 || stored.fp8) return {"fp8", "FP8 blocks"};
  return {};
}

// Checks the value `found` of --quantization and returns the note about the flag.
Result<std::string> check_quantization(const std::string& found, const ModelFlags& model) {
  const auto stored = stored_weights(model);
  if (!stored.ok()) return stored.status();
  const auto [name, what] = name_of(stored.value());
  // vLLM's names of tools that write checkpoints: the config's quant_method, and its own name for ModelOpt's NVFP4.
  const std::string& method = stored.value().method;
  const bool of_tool =
      !method.empty() &&
      (found == method || (found == "modelopt_fp4" && method == "modelopt" && name == "nvfp4"));
  if (found == "auto" || of_tool || (found == name && !name.empty()))
    return std::string("--quantization: the checkpoint determines how its experts are stored");
  const std::string has = name.empty() ? "auto (the checkpoint is not quantized)"
                                       : "auto, " + name + " (the checkpoint has " + what + ")";
  return invalid("--quantization: wanted " + has + ", found '" + found + "'");
}

}  // namespace

Result<std::vector<std::string>> check_other_servers(const OtherServersFlags& flags, const ModelFlags& model,
                                                     const ChatFormat& format) {
  std::vector<std::string> notes;
  const ParserNames names = parser_names(format.name());
  if (!flags.reasoning_parser.empty()) {
    SLUICE_TRY(check_parser("--reasoning-parser", flags.reasoning_parser, names.reasoning, format));
    notes.emplace_back("--reasoning-parser: the chat format defines reasoning");
  }
  if (!flags.tool_call_parser.empty()) {
    SLUICE_TRY(check_parser("--tool-call-parser", flags.tool_call_parser, names.tools, format));
    notes.emplace_back("--tool-call-parser: the chat format defines tool calls");
  }
  if (!flags.quantization.empty()) {
    const auto note = check_quantization(flags.quantization, model);
    if (!note.ok()) return note.status();
    notes.push_back(note.value());
  }
  return notes;
}

}  // namespace sluice::apps
