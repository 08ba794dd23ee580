#include "apps/explain/draft_choices.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "apps/common/model_directory.h"
#include "backends/backends.h"
#include "engine/engine.h"
#include "models/draft.h"
#include "models/family.h"
#include "models/read_config.h"

namespace sluice::apps {
namespace {

constexpr int64_t kSequences[] = {1, 8, 32, 64, 128};
constexpr double kAcceptances[] = {0.5, 0.6, 0.7, 0.8, 0.9};

// The draft layer or draft head, and the largest number of drafts.
struct DraftPlan {
  std::optional<DraftLayerConfig> layer;  // nullopt: the method has no draft layer
  int64_t drafts_max = 0;
};

Result<DraftPlan> eagle3_plan(const SpeculativeConfig& speculation, const ModelConfig& model) {
  if (speculation.model.empty())
    return invalid("--speculative-config: model: wanted the directory of a draft head, found none");
  const auto directory = model_directory(speculation.model);
  if (!directory.ok()) return directory.status();
  const std::string path = directory.value() + "/config.json";
  const auto json = read_json(path, kConfigBytesMax);
  if (!json.ok()) return json.status();
  const JsonAt at(json.value(), path);
  auto layer = read_eagle3_config(at, model);
  if (!layer.ok()) return layer.status();
  // Only the weight files show whether the head has a table of token ids. It is assumed if the head has another vocabulary than the model.
  layer.value().maps_tokens = layer.value().draft_vocab != layer.value().vocab;
  DraftPlan out{std::move(layer).value(), speculation.options.num_speculative_tokens};
  if (!speculation.count_from_head) return out;
  const auto recommended = read_speculative_tokens(at);
  if (!recommended.ok()) return recommended.status();
  out.drafts_max = recommended.value().value_or(out.drafts_max);
  return out;
}

Result<DraftPlan> draft_plan(const SpeculativeConfig& speculation, const ModelConfig& model) {
  const int64_t drafts_max = speculation.options.num_speculative_tokens;
  if (!speculation.moe_backend.empty())
    return invalid(
        "--speculative-config: moe_backend: wanted none in explain, which places all layers on one device, "
        "found " +
        speculation.moe_backend);
  if (speculation.options.method == DraftMethod::kEagle3) return eagle3_plan(speculation, model);
  if (speculation.options.method != DraftMethod::kMtp) return DraftPlan{{}, drafts_max};
  auto layer = mtp_config(model);
  if (!layer.ok()) return layer.status();
  return DraftPlan{std::move(layer).value(), drafts_max};
}

// Microseconds of a step in which each sequence has the same number of drafts.
class Costs {
 public:
  static Result<Costs> plan(const ModelQuestion& q, const ModelConfig& model, const DraftPlan& drafts,
                            const DeviceInfo& device) {
    StepBounds bounds;
    bounds.positions = q.max_model_len > 0 ? q.max_model_len : std::min<int64_t>(model.context, 4096);
    bounds.sequences = *std::ranges::max_element(kSequences);
    bounds.verify_rows = 1 + drafts.drafts_max;
    bounds.tokens = bounds.rows = std::min(bounds.sequences * bounds.verify_rows, kVerifiedRows);
    bounds.pages = bounds.sequences * bounds.pages_per_seq();
    DecoderConfig decoder =
        model.decoder.with_layouts_of(device).with_caches(q.cache).with_fp8_activations(q.fp8_activations);
    Costs out;
    out.waiting_us_ = device.backend == Backend::kCuda ? kWaitingUs : 0;
    if (drafts.layer) {
      DraftLayerConfig layer = drafts.layer->with_layouts_of(device);
      layer.attention.cache = decoder.layers.front().attention.cache;
      decoder.taps = layer.taps;
      decoder.draft_attention = layer.attention;
      auto steps = plan_draft_layer(device, all_candidates(), layer, bounds, q.policy, q.moe_backend);
      if (!steps.ok()) return steps.status();
      out.layer_ = std::move(steps).value();
    }
    auto steps = plan_decoder(device, all_candidates(), decoder, bounds, q.policy, q.moe_backend);
    if (!steps.ok()) return steps.status();
    out.decoder_ = std::move(steps).value();
    return out;
  }

  double of(int64_t sequences, int64_t drafts) const {
    // As in the engine (Speculation::best_count), a step that verifies drafts never costs less than a step without drafts.
    const double step = std::max(of_step(sequences, false), of_step(sequences * (1 + drafts), drafts > 0));
    if (drafts == 0) return step;
    if (!layer_) return step + waiting_us_;
    // The first draft needs no pass of its own, because the layer has run over the step's rows.
    return step + static_cast<double>(drafts) * layer_->head->cost_us(sequences) +
           static_cast<double>(drafts - 1) * layer_->next->cost_us(sequences);
  }

 private:
  // Includes the draft layer, which runs over the rows of every step, even if it makes no drafts.
  double of_step(int64_t tokens, bool verifies) const {
    return decoder_.layers.cost_us(tokens, verifies) + decoder_.all_logits->cost_us(tokens) +
           (layer_ ? layer_->extend.cost_us(tokens, verifies) : 0);
  }

  DecoderSteps decoder_;
  std::optional<DraftLayerSteps> layer_;
  double waiting_us_ = 0;
};

// The number of drafts that the engine would choose for `sequences` sequences if each draft is accepted with
// probability `acceptance`.
DraftChoice choice_of(int64_t sequences, double acceptance, const std::vector<double>& cost_by_drafts) {
  const double plain_us = cost_by_drafts.front();
  std::vector<double> tokens;  // by the number of drafts
  std::vector<DraftRate> rates;
  double sum = 0, accepted = 1;
  for (size_t k = 0; k < cost_by_drafts.size(); ++k) {
    tokens.push_back(sum += accepted * static_cast<double>(sequences));
    accepted *= acceptance;
    if (k > 0) rates.push_back({sum / cost_by_drafts[k], k});
  }
  const size_t k = worthwhile_count(static_cast<double>(sequences) / plain_us, rates);
  return {.sequences = sequences,
          .acceptance = acceptance,
          .drafts = static_cast<int64_t>(k),
          .tokens = tokens[k],
          .cost_us = cost_by_drafts[k],
          .plain_us = plain_us};
}

}  // namespace

Result<DraftChoices> draft_choices(const ModelQuestion& q, const SpeculativeConfig& speculation,
                                   const DeviceInfo& device) {
  std::error_code unknown;
  if (known_moe(q.model).ok() && !std::filesystem::is_directory(q.model, unknown))
    return invalid("--speculative-config: wanted --model with a directory, found only the MoE layer '" +
                   q.model + "', which generates no tokens");
  const auto directory = model_directory(q.model);
  if (!directory.ok()) return directory.status();
  Result<ModelConfig> model = read_model_config(directory.value());
  if (!model.ok()) return model.status();
  // Without weight files the config alone is used.
  if (const auto files = Checkpoint::open(directory.value()); files.ok())
    SLUICE_TRY(fit_to_files(*files.value(), &model.value()));
  const auto drafts = draft_plan(speculation, model.value());
  if (!drafts.ok()) return drafts.status();
  const auto costs = Costs::plan(q, model.value(), drafts.value(), device);
  if (!costs.ok()) return costs.status();
  DraftChoices out{.model = q.model,
                   .method = speculation.options.method,
                   .drafts_max = drafts.value().drafts_max,
                   .choices = {}};
  for (const int64_t sequences : kSequences) {
    std::vector<double> cost_by_drafts;
    for (int64_t k = 0; k <= out.drafts_max && sequences * (1 + k) <= kVerifiedRows; ++k)
      cost_by_drafts.push_back(costs.value().of(sequences, k));
    for (const double acceptance : kAcceptances)
      out.choices.push_back(choice_of(sequences, acceptance, cost_by_drafts));
  }
  return out;
}

}  // namespace sluice::apps
