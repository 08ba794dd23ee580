#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "apps/common/main_device.h"
#include "apps/common/session.h"
#include "apps/explain/draft_choices.h"
#include "apps/explain/explain.h"
#include "apps/explain/explain_json.h"
#include "apps/explain/explain_model.h"
#include "backends/backends.h"
#include "dispatch/explain.h"
#include "nn/moe/layer.h"

namespace sluice::apps {
namespace {

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

int list_ops(Format format) {
  if (format == Format::kJson) return print(ops_json()), kExitOk;
  for (const std::string& name : op_names())
    std::printf("%-12s  %s\n", name.c_str(), std::string(make_problem(name).value()->summary()).c_str());
  return kExitOk;
}

void print_contract(AnyProblem& problem) {
  std::printf("%s  %s\n\nfields\n", std::string(problem.op()).c_str(),
              std::string(problem.summary()).c_str());
  for (const Field& f : problem.fields()) {
    std::string accepts;
    if (is_switch(f)) {
      accepts = " (a flag)";
    } else {
      for (std::string_view w : f.words) accepts += (accepts.empty() ? " (" : ", ") + std::string(w);
      if (!accepts.empty()) accepts += ")";
    }
    std::printf("  %-14s %-12s %s%s\n", std::string(f.name).c_str(), f.value_text().c_str(),
                std::string(f.doc).c_str(), accepts.c_str());
  }
  std::printf("\ntensors\n");
  constexpr const char* kRoles[] = {"in", "out", "in/out"};
  for (const SlotSpec& s : problem.slots()) {
    const std::string shape = text(s.dtype) + shape_text(s.shape.data(), s.rank);
    std::printf("  %-14s %-7s%s%s%s\n", std::string(s.name).c_str(), kRoles[static_cast<size_t>(s.role)],
                shape.c_str(), s.rows == Rows::kMayBeStrided ? ", rows may be strided" : "",
                s.used ? "" : ", not used by this problem");
  }
}

void print_sweep(const AnyProblem& problem, const DeviceInfo& device, const std::vector<TableStep>& steps) {
  std::printf("problem  %s %s\ndevice   %s\n", std::string(problem.op()).c_str(), problem.text().c_str(),
              text(device).c_str());
  std::printf("%10s %10s  %12s %12s  %s\n", "tokens", "to", "us", "to us", "kernel");
  for (const TableStep& s : steps)
    std::printf("%10lld %10lld  %12.1f %12.1f  %s%s\n", static_cast<long long>(s.first),
                static_cast<long long>(s.last), s.first_us, s.last_us, s.choice().c_str(),
                s.planned ? "  (planned: no kernel in this build)" : "");
}

// The device to explain: a device of this machine, or a known device. The default for an operation is this machine's CPU, and for a whole
// model its GPU, or its CPU if it has no GPU.
Result<DeviceInfo> device_of(const ExplainOptions& options) {
  const std::string name = options.device.value_or(options.model ? "auto" : "cpu");
  if (name == "cuda" || name == "auto") {
    const auto main = open_main_device(name, 0);
    if (!main.ok()) return main.status();
    return main.value()->info();
  }
  if (name != "cpu") return known_device(name);
  auto opened = open_device({});
  if (!opened.ok()) return opened.status();
  return opened.value()->info();
}

Status check_force(const AnyProblem& problem, const std::string& force) {
  if (force.empty()) return {};
  std::vector<std::string> known;
  for (const Verdict& v : problem.decide({}, all_candidates(), {}).verdicts) known.emplace_back(v.candidate);
  for (const ForcedKernel& kernel : forced_kernels(force)) {
    if (kernel.op() != problem.op() && make_problem(kernel.op()).ok())
      continue;  // not a kernel of this operation; decide() checks whether it is one of a fused operation
    if (std::find(known.begin(), known.end(), kernel.name) == known.end())
      return unknown_name("kernel", kernel.name, known);
  }
  return {};
}

int answer_sweep(AnyProblem& problem, const DeviceInfo& device, const ExplainOptions& options) {
  const auto table = problem.table(device, all_candidates(), options.tokens_max, options.policy);
  if (!table.ok()) return wrong_use(table.status().message), kExitNo;
  const std::vector<TableStep>& steps = table.value()->steps();
  if (options.format == Format::kJson) {
    print(sweep_json(problem, device, steps));
  } else {
    print_sweep(problem, device, steps);
  }
  return kExitOk;
}

int answer(AnyProblem& problem, const ExplainOptions& options) {
  if (options.show == Show::kContract) {
    if (options.format == Format::kJson) return print(contract_json(problem)), kExitOk;
    return print_contract(problem), kExitOk;
  }
  const Result<DeviceInfo> device = device_of(options);
  if (!device.ok()) return wrong_use(device.status().message);
  if (options.show == Show::kSweep) return answer_sweep(problem, device.value(), options);
  const Decision decision = problem.decide(device.value(), all_candidates(), options.policy);
  print(options.format == Format::kJson
            ? decision_json(problem, device.value(), decision)
            : explain_text(problem.op(), problem.text(), device.value(), decision));
  return decision.chosen >= 0 ? kExitOk : kExitNo;
}

// The column "of the floor", which has the roofline divided by the cost; empty if the device's roofline is not known.
std::string floor_column(std::optional<double> floor_us, double cost_us, bool shown) {
  if (!shown) return "";
  if (!floor_us) return "             -";
  char text[32];
  std::snprintf(text, sizeof text, "  %12.2f", *floor_us / cost_us);
  return text;
}

void print_choices(const ModelChoices& choices, const DeviceInfo& device) {
  const std::optional<double> total_floor_us = choices.total_floor_us();
  const bool floors = total_floor_us.has_value();
  std::printf("model    %s\nstep     %lld tokens through %lld layers\ndevice   %s\n", choices.model.c_str(),
              static_cast<long long>(choices.tokens), static_cast<long long>(choices.layers),
              text(device).c_str());
  size_t longest = 20;
  for (const StageChoice& c : choices.stages) longest = std::max(longest, c.stage.size());
  const int width = static_cast<int>(longest);
  std::printf("%7s  %-*s %10s %10s%s  %s\n", "times", width, "stage", "us each", "us",
              floors ? "  of the floor" : "", "kernel");
  for (const StageChoice& s : choices.stages) {
    const std::string of_floor = floor_column(s.floor_us, s.cost_us, floors);
    std::printf("%7lld  %-*s ", static_cast<long long>(s.times), width, s.stage.c_str());
    if (s.kernel.empty()) {
      std::printf("%10s %10s%s  none: %s\n", "-", "-", of_floor.c_str(), s.reasons.c_str());
      continue;
    }
    std::printf("%10.1f %10.1f%s  %s%s\n", s.cost_us, s.cost_us * static_cast<double>(s.times),
                of_floor.c_str(), s.kernel.c_str(), s.planned ? "  (planned: no kernel in this build)" : "");
    for (const TableStep& t : s.steps)
      std::printf("%41lld to %-6lld  %s\n", static_cast<long long>(t.first), static_cast<long long>(t.last),
                  t.choice().c_str());
  }
  std::printf("%7s  %-*s %10s %10.1f%s  (by the cost models)\n", "", width, "all", "", choices.total_us(),
              floor_column(total_floor_us, choices.total_us(), floors).c_str());
  for (const std::string& one : choices.not_run)
    std::printf("forced, but does not run at %lld tokens: %s\n", static_cast<long long>(choices.tokens),
                one.c_str());
  if (choices.refused() > 0)
    std::printf("%lld stages have no kernel for this device\n", static_cast<long long>(choices.refused()));
}

// Prints a row for each number of sequences and a column for each acceptance probability.
void print_draft_choices(const DraftChoices& choices, const DeviceInfo& device) {
  std::printf("model    %s\ndrafts   %s, at most %lld of each sequence\ndevice   %s\n", choices.model.c_str(),
              std::string(text(choices.method)).c_str(), static_cast<long long>(choices.drafts_max),
              text(device).c_str());
  std::printf(
      "The number of drafts that the engine chooses, and the speedup over no drafts, by the acceptance "
      "rate of each draft:\n");
  int64_t sequences = 0;
  std::string head = "sequences", rows;
  for (const DraftChoice& c : choices.choices) {
    char cell[64];
    if (c.sequences == choices.choices.front().sequences) {
      std::snprintf(cell, sizeof cell, "%14.1f", c.acceptance);
      head += cell;
    }
    if (c.sequences != sequences) {
      std::snprintf(cell, sizeof cell, "\n%9lld", static_cast<long long>(c.sequences));
      rows += cell;
    }
    sequences = c.sequences;
    std::snprintf(cell, sizeof cell, "%5lld (%5.2fx)", static_cast<long long>(c.drafts), c.speedup());
    rows += cell;
  }
  print(head + rows + "\n");
}

int explain_drafts(const ModelQuestion& question, const ExplainOptions& options, const DeviceInfo& device) {
  const auto choices = draft_choices(question, *options.speculation, device);
  if (!choices.ok()) return wrong_use(choices.status().message);
  if (options.format == Format::kJson) {
    print(draft_choices_json(choices.value(), device));
  } else {
    print_draft_choices(choices.value(), device);
  }
  return kExitOk;
}

int explain_whole_model(const ExplainOptions& options) {
  const Result<DeviceInfo> device = device_of(options);
  if (!device.ok()) return wrong_use(device.status().message);
  const Result<CacheType> cache = cache_type_of(options.kv_cache_dtype, DType::kBF16);
  if (!cache.ok()) return wrong_use(cache.status().message);
  ModelQuestion question{.model = *options.model,
                         .tokens = options.tokens,
                         .max_model_len = options.max_model_len,
                         .sweep_tokens_max = {},
                         .policy = options.policy,
                         .moe_backend = options.moe_backend,
                         .fp8_activations = options.fp8_activations,
                         .cache = cache.value()};
  if (options.speculation) return explain_drafts(question, options, device.value());
  if (options.show == Show::kSweep) question.sweep_tokens_max = options.tokens_max;
  const Result<ModelChoices> choices = model_choices(question, device.value());
  if (!choices.ok()) return wrong_use(choices.status().message);
  if (options.format == Format::kJson) {
    print(model_choices_json(choices.value(), device.value()));
  } else {
    print_choices(choices.value(), device.value());
  }
  return choices.value().refused() == 0 ? kExitOk : kExitNo;
}

// Changes a default: the layout of the experts' weights becomes the layout that the device's kernels read.
void suit_device(AnyProblem& problem, const ExplainOptions& options) {
  if (problem.op() != ExpertGemm::kName || options.show == Show::kContract) return;
  const Result<DeviceInfo> device = device_of(options);
  if (!device.ok()) return;  // the caller reports this error later
  const Status status = problem.set("layout", std::string(word(layout_for(device.value().backend))));
  if (!status.ok()) std::abort();  // cannot happen, because the field accepts this word
}

}  // namespace

int explain(const ExplainOptions& options) {
  if (options.model) return explain_whole_model(options);
  if (options.op.empty()) return list_ops(options.format);
  const auto problem = make_problem(options.op);
  if (!problem.ok()) return wrong_use(problem.status().message);
  suit_device(*problem.value(), options);
  for (const auto& [name, value] : options.fields)
    if (const Status status = problem.value()->set(name, value); !status.ok())
      return wrong_use(status.message);
  if (const Status status = check_force(*problem.value(), options.policy.force); !status.ok())
    return wrong_use(status.message);
  if (options.show == Show::kSweep && options.tokens_max < 0)
    return wrong_use("--tokens-max: wanted 0 or more, found " + std::to_string(options.tokens_max));
  return answer(*problem.value(), options);
}

}  // namespace sluice::apps
