#include "apps/explain_model.h"

#include <algorithm>
#include <filesystem>

#include "apps/model_directory.h"
#include "apps/model_floor.h"
#include "backends/backends.h"
#include "models/family.h"
#include "nn/moe_path.h"

namespace sluice::apps {
namespace {

struct Step {
  std::vector<StageProblem> stages;
  int64_t layers = 1;
  MoePhase phase = {};                     // that the step's tokens are of
  std::vector<std::string_view> ops = {};  // of its stages on any path
};

void add_ops(const std::vector<StageProblem>& stages, std::vector<std::string_view>* out) {
  for (const StageProblem& s : stages)
    if (std::find(out->begin(), out->end(), s.problem->op()) == out->end()) out->push_back(s.problem->op());
}

// Which path runs is a choice, so a word for an operation of another one is no mistake.
void add_ops_of_all_paths(const MoeConfig& config, int64_t tokens, Step* step) {
  add_ops(step->stages, &step->ops);
  for (const MoePath path : kMoePaths) add_ops(moe_problems(config, tokens, path), &step->ops);
}

Result<MoePhase> phase_of(const ModelQuestion& q, const DeviceInfo& device) {
  const int64_t tokens_max = std::max(q.tokens, q.sweep_tokens_max.value_or(0));
  const auto phases = phases_of(q.moe_backend, device, all_candidates(), tokens_max, q.policy);
  if (!phases.ok()) return phases.status();
  const MoePhase& first = phases.value().front();
  return q.tokens <= first.last ? first : phases.value().back();
}

MoePath path_of(const MoeConfig& config, const ModelQuestion& q, const MoePhase& phase,
                const DeviceInfo& device) {
  return phase.path().value_or(moe_path(config, q.tokens, device, all_candidates(), q.policy));
}

Result<Step> step_of(const ModelQuestion& q, const DeviceInfo& device) {
  Step step;
  const Result<MoePhase> phase = phase_of(q, device);
  if (!phase.ok()) return phase.status();
  step.phase = phase.value();
  // A known layer's name stands over a model's in a cache.
  const Result<MoeConfig> moe = known_moe(q.model);
  const bool layer = moe.ok() && !std::filesystem::is_directory(q.model);
  const auto directory =
      layer || q.model.empty() ? Result<std::string>(invalid("")) : model_directory(q.model);
  if (!directory.ok()) {
    if (!moe.ok() && std::filesystem::exists(q.model)) return directory.status();
    if (!moe.ok())
      return invalid("--model: wanted a directory with config.json or one of " + known_moe_names() +
                     ", found '" + q.model + "'");
    if (q.cache != CacheType::kSame)
      return invalid("--kv-cache-dtype: wanted --model with a directory, found the MoE layer '" + q.model +
                     "' alone, which has no caches");
    MoeConfig config = moe.value();
    config.layout = layout_for(device.backend);
    step.stages = moe_problems(config, q.tokens, path_of(config, q, step.phase, device));
    add_ops_of_all_paths(config, q.tokens, &step);
    return step;
  }
  Result<ModelConfig> config = read_model_config(directory.value());
  if (!config.ok()) return config.status();
  // The files need not be there.
  if (const auto files = Checkpoint::open(directory.value()); files.ok())
    SLUICE_TRY(fit_to_files(*files.value(), &config.value()));
  StepBounds bounds;
  bounds.positions = q.max_model_len > 0 ? q.max_model_len : std::min<int64_t>(config.value().context, 4096);
  bounds.tokens = std::max<int64_t>({q.tokens, 1, q.sweep_tokens_max.value_or(0)});
  // A step that decodes draws a token for each sequence; more tokens than that are prompts.
  bounds.sequences = std::clamp<int64_t>(q.tokens, 1, 256);
  bounds.pages = bounds.sequences * bounds.pages_per_seq();
  step.layers = config.value().decoder.layers();
  const DecoderConfig decoder = config.value().decoder.with_layouts_of(device).with_caches(q.cache);
  const MoePath path = path_of(layer_moe(decoder), q, step.phase, device);
  step.stages = decoder_problems(decoder, bounds, q.tokens, std::min(q.tokens, bounds.sequences), path);
  add_ops_of_all_paths(layer_moe(decoder), q.tokens, &step);
  return step;
}

// "layer 3 experts.up" and "layer 4 experts.up" are one stage when their problems are equal.
std::string without_layer(const std::string& stage) {
  if (stage.rfind("layer ", 0) != 0) return stage;
  return stage.substr(stage.find(' ', 6) + 1);
}

void decide_stage(const AnyProblem& problem, const ModelQuestion& q, const MoePhase& phase,
                  const DeviceInfo& device, StageChoice* out) {
  const Policy policy = problem.policy_for(stage_policy(out->stage, q.policy, phase), all_candidates());
  const Decision decision = problem.decide(device, all_candidates(), policy);
  if (!decision.contract.accepted()) out->reasons = decision.contract.line();
  if (decision.chosen < 0) {
    // Other backends' kernels always refuse this device, so only the reasons of its own backend help.
    const std::string own = std::string(text(device.backend)) + ".";
    for (const Verdict& v : decision.verdicts)
      if (v.candidate.starts_with(own) && !v.refusal.accepted())
        out->reasons +=
            (out->reasons.empty() ? "" : "; ") + std::string(v.candidate) + ": " + v.refusal.line();
    if (out->reasons.empty()) out->reasons = "no " + own + out->op + " kernel exists";
    return;
  }
  const Verdict& v = decision.verdicts[static_cast<size_t>(decision.chosen)];
  out->kernel = v.candidate;
  out->config = decision.config().name;
  out->planned = v.planned;
  out->cost_us = v.cost_us;
  if (device.backend == Backend::kCuda) out->floor_us = floor_us(problem.bytes(), problem.flops(), device);
  if (!q.sweep_tokens_max) return;
  // Experts whose kernel is named for a phase are looked at there, in rows of their operation.
  const bool named =
      !phase.kernel.empty() && policy.force != problem.policy_for(q.policy, all_candidates()).force;
  const int64_t rows = problem.tokens() / q.tokens;
  const int64_t first = named ? phase.first * rows : 0;
  const int64_t last = named ? std::min(*q.sweep_tokens_max, phase.last * rows) : *q.sweep_tokens_max;
  if (first > last) return;
  const auto table = problem.table(device, all_candidates(), last, policy, first);
  if (table.ok()) out->steps = table.value()->steps();
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
  const Result<Step> step = step_of(q, device);
  if (!step.ok()) return step.status();
  SLUICE_TRY(check_force(q.policy, step.value().ops));
  ModelChoices out{.model = q.model, .tokens = q.tokens, .layers = step.value().layers, .stages = {}};
  for (const StageProblem& s : step.value().stages) {
    const std::string name = without_layer(s.stage), text = s.problem->text();
    const auto same = std::find_if(out.stages.begin(), out.stages.end(), [&](const StageChoice& c) {
      return c.stage == name && c.problem == text;
    });
    if (same != out.stages.end()) {
      ++same->times;
      continue;
    }
    StageChoice choice;
    choice.stage = name, choice.op = s.problem->op(), choice.problem = text, choice.times = 1;
    decide_stage(*s.problem, q, step.value().phase, device, &choice);
    out.stages.push_back(std::move(choice));
  }
  return out;
}

}  // namespace sluice::apps
