// The kernels of a whole model: every distinct stage of a step, how often it occurs, and the kernel with its cost.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "graph/any_op.h"
#include "nn/moe/layer.h"

namespace sluice::apps {

struct StageChoice {
  std::string stage;  // name without the layer, such as "experts.up"
  std::string op, problem;
  int64_t times = 0;   // per step
  std::string config;  // the kernel's configuration; empty: it has only one
  std::string kernel;  // empty: no kernel accepts the stage
  bool planned = false;
  double cost_us = 0;  // cost of one run
  // Roofline of one run on this device, from the operation's bytes() and flops() (floor_us). nullopt for a CPU, because its memory bandwidth is
  // only known from `sluice bench`, and for stages that no kernel accepts.
  std::optional<double> floor_us;
  std::string reasons;           // why no kernel accepts the stage; empty if one does
  std::vector<TableStep> steps;  // the kernels of a sweep; empty without a sweep
};

struct ModelChoices {
  std::string model;
  int64_t tokens = 0, layers = 0;
  std::vector<StageChoice> stages;  // in the order of their first run
  // "NAME: reasons" for each forced fused kernel that accepts other token counts, but not this one.
  std::vector<std::string> not_run = {};
  double total_us() const;
  // sum over the stages with a roofline; nullopt if there are none
  std::optional<double> total_floor_us() const;
  int64_t refused() const;
};

struct ModelQuestion {
  std::string model;  // a directory with config.json, or a name of known_moe() (its MoE layer only)
  int64_t tokens = 1;
  int64_t max_model_len = 0;  // 0: the model's context, at most 4096
  // if set, also lists every change of kernel up to this token count
  std::optional<int64_t> sweep_tokens_max;
  Policy policy = {};
  MoeBackend moe_backend = {};
  bool fp8_activations = false;        // MoeConfig::fp8_activations of the layers
  CacheType cache = CacheType::kSame;  // type of the KV cache; not used for a name of known_moe()
};

Result<ModelChoices> model_choices(const ModelQuestion& question, const DeviceInfo& device);

}  // namespace sluice::apps
