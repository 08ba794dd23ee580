#include "apps/common/session_lines.h"

#include <cstdio>
#include <filesystem>

#include "base/printable.h"

namespace sluice::apps {
namespace {

std::string fixed(double value, int digits) {
  char out[48];
  std::snprintf(out, sizeof out, "%.*f", digits, value);
  return out;
}

std::string gigabytes(int64_t bytes) { return fixed(1e-9 * static_cast<double>(bytes), 2) + " GB"; }

// The kernels that run the experts in a decode step.
std::string experts_kernel(const Engine& engine) {
  std::string up, down;
  for (const auto& [stage, kernel] : engine.decoder().kernels(1, 1)) {
    if (stage.find("experts.up+") != std::string::npos) return kernel;
    if (stage == "experts.up") up = kernel;
    if (stage == "experts.down") down = kernel;
  }
  return up == down ? up : up + " and " + down;
}

// The path relative to the current directory, if that is possible and shorter.
std::string near_name(const std::string& directory) {
  std::error_code error;
  // Checked first, because proximate() throws if the current directory was removed.
  const auto here = std::filesystem::current_path(error);
  if (error) return directory;
  const std::string relative = std::filesystem::proximate(directory, here, error).string();
  return error || relative.size() >= directory.size() ? directory : relative;
}

// Returns "rows_sm90" for "cuda.rms_norm.rows_sm90", with the configuration, if one follows.
std::string variant_of(const std::string& kernel) {
  const size_t op = kernel.find('.'), variant = op == std::string::npos ? op : kernel.find('.', op + 1);
  return variant == std::string::npos ? kernel : kernel.substr(variant + 1);
}

std::string slices_text(const Session& s) {
  if (s.other_models.empty()) return "";
  const MoeConfig& moe = s.model->config().decoder.moe();
  return " on " + std::to_string(1 + s.other_models.size()) + " devices" +
         (moe.scope == ExpertScope::kRange ? ", " + std::to_string(moe.expert_count) + " experts on the first"
                                           : "");
}

SessionLine line_of_model(const Session& s) {
  const ModelConfig& c = s.model->config();
  const std::string name = near_name(s.directory);
  return {.text = name + ": " + c.architecture + ", " + std::to_string(c.decoder.layers.size()) +
                  " layers, " + std::to_string(c.decoder.moe().experts) + " experts (top " +
                  std::to_string(c.decoder.moe().top_k) + "), " + gigabytes(weight_bytes(s)) +
                  slices_text(s) + (s.format == LoadFormat::kDummy ? " of random weights" : "") + " in " +
                  fixed(s.load_seconds, 1) + " s",
          .fields = {{"kind", "model"},
                     {"model", name},
                     {"architecture", c.architecture},
                     {"layers", std::ssize(c.decoder.layers)},
                     {"experts", c.decoder.moe().experts},
                     {"top_k", c.decoder.moe().top_k},
                     {"weight_bytes", weight_bytes(s)},
                     {"tensor_parallel_size", 1 + std::ssize(s.other_models)},
                     {"seconds", s.load_seconds}}};
}

SessionLine line_of_experts(const Session& s) {
  const std::string device = s.experts ? text(s.experts->info()) : devices_text(s),
                    kernel = experts_kernel(*s.engine);
  return {.text = device + ": experts of a decode step: " + kernel,
          .fields = {{"kind", "experts"}, {"device", device}, {"kernel", kernel}}};
}

// Returns "cache of 65536 tokens in sequences of 4096, 3.22 GB, ...; a decode step: norm rows_sm90, ...". The line names the length of the
// sequences, because a layer with a sliding window needs the same memory for each sequence. With shorter sequences the cache therefore has
// room for fewer tokens.
SessionLine line_of_memory(const Session& s) {
  const EngineMemory& m = s.engine->memory();
  const StepBounds& b = s.engine->decoder().bounds();
  const std::string& device = s.device->info().name;
  const std::string type = text(s.engine->decoder().config().layers.front().attention.cache_type());
  std::string kernels;
  for (const auto& [stage, kernel] : s.engine->decoder().kernels(1, 1))
    kernels += (kernels.empty() ? "" : ", ") + stage + " " + variant_of(kernel);
  return {.text = device + ": cache of " + std::to_string(m.tokens) + " tokens of " + type +
                  " in sequences of " + std::to_string(b.positions) + ", " + gigabytes(m.kv_cache_bytes) +
                  ", workspace " + gigabytes(m.workspace_bytes) + ", steps of up to " +
                  std::to_string(b.tokens) + " tokens and " + std::to_string(b.sequences) +
                  " sequences; a decode step: " + kernels,
          .fields = {{"kind", "memory"},
                     {"device", device},
                     {"cache_tokens", m.tokens},
                     {"sequence_tokens", b.positions},
                     {"cache_bytes", m.kv_cache_bytes},
                     {"cache_type", type},
                     {"workspace_bytes", m.workspace_bytes},
                     {"step_tokens", b.tokens},
                     {"step_sequences", b.sequences}}};
}

SessionLine line_of_drafts(const Session& s) {
  const std::string name = near_name(s.draft_directory);
  const int64_t drafts = s.engine->speculation().num_speculative_tokens;
  const std::string method =
      s.engine->speculation().method == DraftMethod::kMtp ? "multi-token prediction" : "EAGLE3";
  return {.text = name + ": " + method + ", at most " + std::to_string(drafts) + " drafts per step, " +
                  gigabytes(s.draft_head->weight_bytes()) + " in addition to the model",
          .fields = {{"kind", "drafts"},
                     {"model", name},
                     {"method", std::string(text(s.engine->speculation().method))},
                     {"num_speculative_tokens", drafts},
                     {"weight_bytes", s.draft_head->weight_bytes()}}};
}

}  // namespace

std::vector<SessionLine> lines_about(const Session& session) {
  std::vector<SessionLine> out{line_of_model(session), line_of_experts(session), line_of_memory(session)};
  if (session.draft_head) out.push_back(line_of_drafts(session));
  const LoadNotes& notes = session.model->notes();
  const auto note = [&](const std::vector<std::string>& tensors, const std::string& what) {
    if (tensors.empty()) return;
    const std::string name = near_name(session.directory), count = std::to_string(tensors.size());
    out.push_back({.text = name + ": " + what + ": " + count + " (" + printable(tensors.front()) +
                           (tensors.size() > 1 ? ", ..." : "") + ")",
                   .fields = {{"kind", "note"},
                              {"model", name},
                              {"note", what},
                              {"tensors", std::ssize(tensors)},
                              {"first", tensors.front()}}});
  };
  note(notes.converted, "tensors of F32 or F16, rounded to bf16");
  note(notes.fp8, "tensors in FP8 or FP4, converted to bf16");
  note(notes.unused, "tensors that the model does not use");
  return out;
}

}  // namespace sluice::apps
