#include "apps/explain/explain_model.h"

#include <algorithm>
#include <filesystem>

#include "apps/common/model_directory.h"
#include "apps/common/model_floor.h"
#include "apps/common/session.h"
#include "backends/backends.h"
#include "models/family.h"
#include "nn/decoder.h"

namespace sluice::apps {
namespace {

// All reasons why the kernels of this device's backend do not accept the problem.
std::string reasons_of(const PieceProblem& piece, const DeviceInfo& device) {
  const Decision decision = piece.problem->decide(device, all_candidates(), piece.policy);
  std::string out = decision.contract.accepted() ? "" : decision.contract.line();
  const std::string own = std::string(text(device.backend)) + ".";
  for (const Verdict& v : decision.verdicts)
    if (v.candidate.starts_with(own) && !v.refusal.accepted())
      out += (out.empty() ? "" : "; ") + std::string(v.candidate) + ": " + v.refusal.line();
  return out.empty() ? "no " + own + std::string(piece.problem->op()) + " kernel exists" : out;
}

StageChoice choice_of(const PieceProblem& piece, const Step& step, int64_t tokens, const ModelQuestion& q,
                      const DeviceInfo& device) {
  StageChoice out;
  out.stage = piece.stage, out.op = piece.problem->op(), out.problem = piece.problem->text(), out.times = 1;
  if (piece.choice.empty()) {
    out.reasons = reasons_of(piece, device);
    return out;
  }
  const size_t colon = std::min(piece.choice.find(':'), piece.choice.size());
  out.kernel = piece.choice.substr(0, colon);
  out.config = piece.choice.substr(std::min(colon + 1, piece.choice.size()));
  out.planned = piece.planned;
  out.cost_us = piece.cost_us;
  if (device.backend == Backend::kCuda)
    out.floor_us = floor_us(piece.problem->bytes(), piece.problem->flops(), device);
  if (q.sweep_tokens_max) out.steps = step.ranges(piece.first, tokens);
  return out;
}

// Adds the forced fused kernels that do not accept this token count, with the reasons. Other kernels compute the stages of
// these kernels.
void add_not_run(const Step& step, int64_t tokens, const DeviceInfo& device, std::vector<std::string>* out) {
  for (const auto& kind : step.pieces().kinds()) {
    if (!kind->required() || kind->serves(tokens)) continue;
    const Decision decision = kind->problem(tokens)->decide(device, all_candidates(), kind->policy());
    for (const Verdict& v : decision.verdicts) {
      if (!kind->policy().force.starts_with(v.candidate) || v.refusal.accepted()) continue;
      const std::string line = std::string(v.candidate) + ": " + v.refusal.line();
      if (std::find(out->begin(), out->end(), line) == out->end()) out->push_back(line);
    }
  }
}

// Adds the pieces of a step. A stage that occurs with the same problem in several layers becomes one entry.
void add_pieces(const Step& step, int64_t tokens, const ModelQuestion& q, const DeviceInfo& device,
                ModelChoices* out) {
  std::vector<StageChoice>& stages = out->stages;
  for (const PieceProblem& piece : step.problems(tokens)) {
    const std::string text = piece.problem->text();
    const auto same = std::find_if(stages.begin(), stages.end(), [&](const StageChoice& c) {
      return c.stage == piece.stage && c.problem == text;
    });
    if (same != stages.end()) {
      ++same->times;
    } else {
      stages.push_back(choice_of(piece, step, tokens, q, device));
    }
  }
  add_not_run(step, tokens, device, &out->not_run);
}

// Chooses kernels for a known MoE layer, or for the model in a directory.
Status choose(const ModelQuestion& q, const DeviceInfo& device, ModelChoices* out) {
  const int64_t tokens_max = std::max(q.tokens, q.sweep_tokens_max.value_or(0));
  // The name of a known layer takes precedence over a cached model's name.
  const Result<MoeConfig> moe = known_moe(q.model);
  std::error_code unknown;  // an unreadable path counts as missing
  const bool layer = moe.ok() && !std::filesystem::is_directory(q.model, unknown);
  const auto directory =
      layer || q.model.empty() ? Result<std::string>(invalid("")) : model_directory(q.model);
  if (!directory.ok()) {
    if (!moe.ok() && std::filesystem::exists(q.model, unknown)) return directory.status();
    if (!moe.ok())
      return invalid("--model: wanted a directory with config.json or one of " + known_moe_names() +
                     ", found '" + q.model + "'");
    if (q.cache != CacheType::kSame)
      return invalid("--kv-cache-dtype: wanted --model with a directory, found only the MoE layer '" +
                     q.model + "', which has no caches");
    if (q.max_model_len > 0)
      return invalid("--max-model-len: wanted --model with a directory, found only the MoE layer '" +
                     q.model + "', which has no sequences");
    MoeConfig config = moe.value();
    config.layout = layout_for(device.backend);
    config.fp8_activations = q.fp8_activations;
    SLUICE_TRY(check_moe_activations(config, device, all_candidates()));
    const auto step =
        plan_moe(device, all_candidates(), config, tokens_max, q.policy, q.moe_backend, Gaps::kShown);
    if (!step.ok()) return step.status();
    return add_pieces(step.value(), q.tokens, q, device, out), Status{};
  }
  Result<ModelConfig> config = read_model_config(directory.value());
  if (!config.ok()) return config.status();
  // Without weight files the config alone is used.
  if (const auto files = Checkpoint::open(directory.value()); files.ok())
    SLUICE_TRY(fit_to_files(*files.value(), &config.value()));
  if (q.max_model_len > config.value().context)
    return invalid("--max-model-len: wanted at most " + std::to_string(config.value().context) +
                   " (max_position_embeddings), found " + std::to_string(q.max_model_len));
  StepBounds bounds;
  bounds.positions = q.max_model_len > 0 ? q.max_model_len : std::min<int64_t>(config.value().context, 4096);
  bounds.tokens = tokens_max;
  // At most 256 tokens are planned as a decode step with one token per sequence; more tokens are planned as a prefill.
  bounds.sequences = std::clamp<int64_t>(q.tokens, 1, 256);
  bounds.pages = bounds.sequences * bounds.pages_per_seq();
  out->layers = std::ssize(config.value().decoder.layers);
  const DecoderConfig decoder =
      config.value().decoder.with_layouts_of(device).with_caches(q.cache).with_fp8_activations(
          q.fp8_activations);
  SLUICE_TRY(check_moe_activations(decoder.moe(), device, all_candidates()));
  const auto steps =
      plan_decoder(device, all_candidates(), decoder, bounds, q.policy, q.moe_backend, false, Gaps::kShown);
  if (!steps.ok()) return steps.status();
  const DecoderSteps& s = steps.value();
  add_pieces(s.layers.of(q.tokens, 1), q.tokens, q, device, out);
  const int64_t rows = std::min(q.tokens, bounds.sequences);
  add_pieces(rows == q.tokens ? *s.all_greedy : *s.greedy, rows, q, device, out);
  return {};
}

}  // namespace

double ModelChoices::total_us() const {
  double sum = 0;
  for (const StageChoice& s : stages) sum += static_cast<double>(s.times) * s.cost_us;
  return sum;
}

std::optional<double> ModelChoices::total_floor_us() const {
  std::optional<double> sum;
  for (const StageChoice& s : stages)
    if (s.floor_us) sum = sum.value_or(0) + static_cast<double>(s.times) * *s.floor_us;
  return sum;
}

int64_t ModelChoices::refused() const {
  return std::count_if(stages.begin(), stages.end(), [](const StageChoice& s) { return s.kernel.empty(); });
}

Result<ModelChoices> model_choices(const ModelQuestion& q, const DeviceInfo& device) {
  if (q.tokens < 1) return invalid("--tokens: wanted 1 or more, found " + std::to_string(q.tokens));
  ModelChoices out{.model = q.model, .tokens = q.tokens, .layers = 1, .stages = {}};
  SLUICE_TRY(choose(q, device, &out));
  return out;
}

}  // namespace sluice::apps
