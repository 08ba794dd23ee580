#include "apps/explain/explain_json.h"

#include "apps/common/json.h"

namespace sluice::apps {
namespace {

OrderedJson value_of(const Field& field) {
  if (field.kind == Field::Kind::kInt) return *field.integer;
  if (field.kind == Field::Kind::kReal) return *field.real;
  if (is_switch(field)) return *field.choice != 0;
  return field.value_text();
}

OrderedJson fields_of(AnyProblem& problem) {
  OrderedJson out = OrderedJson::object();
  for (const Field& f : problem.fields()) out[std::string(f.name)] = value_of(f);
  return out;
}

OrderedJson steps_json(const std::vector<TableStep>& steps) {
  OrderedJson list = OrderedJson::array();
  for (const TableStep& s : steps)
    list.push_back({{"first", s.first},
                    {"last", s.last},
                    {"kernel", s.kernel},
                    {"planned", s.planned},
                    {"first_us", s.first_us},
                    {"last_us", s.last_us},
                    {"workspace_bytes", s.workspace_bytes}});
  return list;
}

}  // namespace

std::string ops_json() {
  OrderedJson out = OrderedJson::array();
  for (const std::string& name : op_names())
    out.push_back({{"op", name}, {"summary", make_problem(name).value()->summary()}});
  return json_text(out);
}

std::string contract_json(AnyProblem& problem) {
  OrderedJson fields = OrderedJson::array(), tensors = OrderedJson::array();
  for (const Field& f : problem.fields()) {
    OrderedJson field = {{"name", f.name}, {"doc", f.doc}, {"value", value_of(f)}};
    if (!f.words.empty() && !is_switch(f)) field["words"] = f.words;
    fields.push_back(std::move(field));
  }
  constexpr const char* kRoles[] = {"in", "out", "in_out"};
  for (const SlotSpec& s : problem.slots())
    tensors.push_back({{"name", s.name},
                       {"role", kRoles[static_cast<size_t>(s.role)]},
                       {"dtype", text(s.dtype)},
                       {"shape", std::vector<int64_t>(s.shape.begin(), s.shape.begin() + s.rank)},
                       {"used", s.used},
                       {"rows_may_be_strided", s.rows == Rows::kMayBeStrided}});
  return json_text(
      {{"op", problem.op()}, {"summary", problem.summary()}, {"fields", fields}, {"tensors", tensors}});
}

static OrderedJson configs_json(const Verdict& v) {
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < v.configs.size(); ++i) {
    const Config& config = v.configs[i];
    OrderedJson one = {{"name", config.name}, {"accepted", config.refusal.accepted()}};
    if (config.refusal.accepted()) {
      one["cost_us"] = config.cost_us;
      one["workspace_bytes"] = config.workspace_bytes;
    } else {
      one["reasons"] = config.refusal.reasons();
    }
    if (static_cast<int>(i) == v.config) one["launches"] = v.texts;
    out.push_back(std::move(one));
  }
  return out;
}

std::string decision_json(AnyProblem& problem, const DeviceInfo& device, const Decision& decision) {
  OrderedJson candidates = OrderedJson::array();
  for (const Verdict& v : decision.verdicts) {
    OrderedJson one = {{"name", v.candidate}, {"planned", v.planned}};
    one["accepted"] = v.refusal.accepted() && decision.contract.accepted();
    if (one["accepted"]) {
      one["cost_us"] = v.cost_us;
      one["workspace_bytes"] = v.workspace_bytes;
      if (!v.configs[0].name.empty()) one["configs"] = configs_json(v);
    } else {
      one["reasons"] = v.refusal.reasons();
    }
    candidates.push_back(std::move(one));
  }
  OrderedJson out = {{"op", problem.op()}, {"problem", fields_of(problem)}, {"device", device_json(device)}};
  out["contract"] = decision.contract.reasons();
  out["chosen"] = nullptr;
  out["config"] = nullptr;
  if (decision.chosen >= 0) {
    out["chosen"] = decision.choice().candidate;
    if (!decision.config().name.empty()) out["config"] = decision.config().name;
  }
  out["candidates"] = std::move(candidates);
  return json_text(out);
}

std::string sweep_json(AnyProblem& problem, const DeviceInfo& device, const std::vector<TableStep>& steps) {
  const OrderedJson list = steps_json(steps);
  return json_text({{"op", problem.op()},
                    {"problem", fields_of(problem)},
                    {"device", device_json(device)},
                    {"steps", list}});
}

std::string model_choices_json(const ModelChoices& choices, const DeviceInfo& device) {
  OrderedJson stages = OrderedJson::array();
  for (const StageChoice& s : choices.stages) {
    OrderedJson one = {{"stage", s.stage}, {"op", s.op}, {"problem", s.problem}, {"times", s.times}};
    one["kernel"] = nullptr;
    if (s.kernel.empty()) {
      one["reasons"] = s.reasons;
    } else {
      one["kernel"] = s.kernel, one["planned"] = s.planned, one["cost_us"] = s.cost_us;
      if (s.floor_us) one["floor_us"] = *s.floor_us, one["share_of_floor"] = *s.floor_us / s.cost_us;
    }
    if (!s.steps.empty()) one["steps"] = steps_json(s.steps);
    stages.push_back(std::move(one));
  }
  OrderedJson out = {{"model", choices.model},
                     {"tokens", choices.tokens},
                     {"layers", choices.layers},
                     {"device", device_json(device)},
                     {"total_us", choices.total_us()}};
  if (const auto floor = choices.total_floor_us())
    out["total_floor_us"] = *floor, out["share_of_floor"] = *floor / choices.total_us();
  out["stages"] = std::move(stages);
  if (!choices.not_run.empty()) out["forced_not_run"] = choices.not_run;
  return json_text(out);
}

std::string draft_choices_json(const DraftChoices& choices, const DeviceInfo& device) {
  OrderedJson cells = OrderedJson::array();
  for (const DraftChoice& c : choices.choices)
    cells.push_back({{"sequences", c.sequences},
                     {"acceptance", c.acceptance},
                     {"drafts", c.drafts},
                     {"tokens", c.tokens},
                     {"cost_us", c.cost_us},
                     {"plain_us", c.plain_us},
                     {"speedup", c.speedup()}});
  return json_text({{"model", choices.model},
                    {"method", text(choices.method)},
                    {"num_speculative_tokens", choices.drafts_max},
                    {"device", device_json(device)},
                    {"choices", cells}});
}

}  // namespace sluice::apps
