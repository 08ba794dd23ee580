// What a whole model would run: every distinct stage of one step, how often, and why.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "graph/any_op.h"
#include "nn/moe/layer.h"

namespace sluice::apps {

struct StageChoice {
  std::string stage;  // without its layer: "experts.up"
  std::string op, problem;
  int64_t times = 0;   // in one step
  std::string config;  // of the kernel; empty where it has one
  std::string kernel;  // empty: no kernel accepts it
  bool planned = false;
  double cost_us = 0;  // of one
  // What one must at least take on this device: its contract's bytes and flops, each once (floor_us). Not of a CPU, whose
  // memory's rate is measured (`sluice bench`) and not known, nor where no kernel accepts it.
  std::optional<double> floor_us;
  std::string reasons;           // where no kernel accepts it
  std::vector<TableStep> steps;  // of a sweep
};

struct ModelChoices {
  std::string model;
  int64_t tokens = 0, layers = 0;
  std::vector<StageChoice> stages;  // in the order in which they first run
  double total_us() const;
  std::optional<double> total_floor_us() const;  // of the same stages
  int64_t refused() const;
};

struct ModelQuestion {
  std::string model;  // a directory with config.json, or a name that known_moe() knows (its MoE layer alone)
  int64_t tokens = 1;
  int64_t max_model_len = 0;                // 0: the model's context, at most 4096
  std::optional<int64_t> sweep_tokens_max;  // also lists every change of kernel up to that count
  Policy policy = {};
  MoeBackend moe_backend = {};
  CacheType cache = CacheType::kSame;  // of keys and values; a MoE layer alone has none
};

Result<ModelChoices> model_choices(const ModelQuestion& question, const DeviceInfo& device);

}  // namespace sluice::apps
