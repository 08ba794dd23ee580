#include "apps/json.h"

#include "base/json.h"

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

OrderedJson device_json(const DeviceInfo& d) {
  return {{"name", d.name},
          {"backend", text(d.backend)},
          {"text", text(d)},
          {"cores", d.cores},
          {"mem_bytes_per_us", d.mem_bytes_per_us},
          {"bf16_flops_per_us", d.bf16_flops_per_us},
          {"f32_flops_per_us", d.f32_flops_per_us},
          {"launch_us", d.launch_us}};
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

// What is no UTF-8 (a token may end within a character) becomes U+FFFD.
std::string finish(const OrderedJson& json) {
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

OrderedJson timings_json(const std::vector<StepTiming>& timings) {
  OrderedJson out = OrderedJson::array();
  for (const StepTiming& t : timings) {
    OrderedJson kernels = OrderedJson::object();
    for (const auto& [stage, kernel] : t.kernels) kernels[stage] = kernel;
    out.push_back({{"tokens", t.tokens},
                   {"median_ms", t.median_ms},
                   {"fastest_ms", t.fastest_ms},
                   {"slowest_ms", t.slowest_ms},
                   {"same_bits", t.same_bits},
                   {"kernels", kernels}});
  }
  return out;
}

}  // namespace

std::string ops_json() {
  OrderedJson out = OrderedJson::array();
  for (const std::string& name : op_names())
    out.push_back({{"op", name}, {"summary", make_problem(name).value()->summary()}});
  return finish(out);
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
  return finish(
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
  return finish(out);
}

std::string sweep_json(AnyProblem& problem, const DeviceInfo& device, const std::vector<TableStep>& steps) {
  const OrderedJson list = steps_json(steps);
  return finish({{"op", problem.op()},
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
  return finish(out);
}

// As OpenAI's API has it: a token may be a part of a character, so its bytes say what its text cannot.
static OrderedJson token_json(const Tokenizer& tokenizer, int32_t id, float logprob) {
  const std::string_view piece = tokenizer.piece(id);
  return {{"token", piece},
          {"id", id},
          {"logprob", logprob},
          {"bytes", std::vector<uint8_t>(piece.begin(), piece.end())}};
}

static OrderedJson logprobs_json(const std::vector<GeneratedToken>& tokens, const Tokenizer& tokenizer) {
  OrderedJson out = OrderedJson::array();
  for (const GeneratedToken& t : tokens) {
    OrderedJson one = token_json(tokenizer, t.id, t.logprob), top = OrderedJson::array();
    for (const TokenLogprob& other : t.top_logprobs)
      top.push_back(token_json(tokenizer, other.id, other.logprob));
    one["rank"] = t.rank;
    one["top_logprobs"] = std::move(top);
    out.push_back(std::move(one));
  }
  return out;
}

std::string reply_json(const Reply& r, const Tokenizer& tokenizer) {
  OrderedJson out = {{"text", r.text},
                     {"reasoning", r.reasoning},
                     {"finish_reason", text(r.finish)},
                     {"recovered", r.recovered},
                     {"usage",
                      {{"prompt_tokens", r.prompt_tokens},
                       {"prompt_tokens_details", {{"cached_tokens", r.cached_tokens}}},
                       {"completion_tokens", r.completion_tokens}}},
                     {"first_token_seconds", r.first_token_seconds},
                     {"seconds", r.seconds}};
  const bool asked = !r.tokens.empty() && r.tokens.front().rank > 0;
  if (asked) out["logprobs"] = logprobs_json(r.tokens, tokenizer);
  return finish(out);
}

std::string eval_json(const EvalReport& r) {
  const auto share = [](int64_t right, int64_t all) {
    return all ? static_cast<double>(right) / static_cast<double>(all) : 0;
  };
  OrderedJson tasks = OrderedJson::object(), mistakes = OrderedJson::array();
  for (const EvalTask& t : r.tasks)
    tasks[t.task] = {
        {"questions", t.questions}, {"right", t.right}, {"accuracy", share(t.right, t.questions)}};
  for (const EvalMistake& m : r.mistakes)
    mistakes.push_back({{"task", m.question.task},
                        {"question", m.question.question},
                        {"wanted", m.question.answer},
                        {"found", m.found}});
  return finish({{"model", r.model},
                 {"device", r.device},
                 {"tasks", tasks},
                 {"questions", r.questions()},
                 {"right", r.right()},
                 {"accuracy", share(r.right(), r.questions())},
                 {"mistakes", mistakes},
                 {"prompt_tokens", r.prompt_tokens},
                 {"cached_tokens", r.cached_tokens},
                 {"completion_tokens", r.completion_tokens},
                 {"seconds", r.seconds}});
}

std::string bench_json(const BenchReport& r) {
  OrderedJson rows = OrderedJson::array();
  for (const BenchRow& b : r.rows) {
    rows.push_back({{"op", b.op},
                    {"pace", b.pace},
                    {"sequences", b.sequences},
                    {"context", b.context},
                    {"first_token_ms", b.first_token_ms},
                    {"prompt_tokens_per_s", b.prompt_tokens_per_s},
                    {"step_ms", b.step_ms},
                    {"step_ms_p10", b.step_ms_p10},
                    {"step_ms_p90", b.step_ms_p90},
                    {"tokens_per_s", b.tokens_per_s},
                    {"experts", b.experts},
                    {"floor_bytes", b.floor.bytes()},
                    {"floor_flops", b.floor.flops},
                    {"share_of_floor", b.share_of_floor}});
  }
  return finish({{"model", r.model},
                 {"device", r.device},
                 {"weight_bytes", r.weight_bytes},
                 {"active_bytes", r.active_bytes},
                 {"experts", r.experts},
                 {"load_seconds", r.load_seconds},
                 {"read_bytes_per_us", r.read_bytes_per_us},
                 {"rows", rows}});
}

std::string inspection_json(const Inspection& i) {
  OrderedJson tensors = OrderedJson::array();
  for (const InspectedTensor& t : i.tensors) {
    OrderedJson one = {
        {"name", t.name}, {"type", t.type}, {"file", t.file}, {"bytes", t.bytes}, {"use", t.use}};
    if (!t.wrong.empty()) one["wrong"] = t.wrong;
    tensors.push_back(std::move(one));
  }
  return finish({{"path", i.path},
                 {"architecture", i.architecture},
                 {"note", i.note},
                 {"bytes", i.bytes},
                 {"tensors", tensors},
                 {"missing", i.missing}});
}

std::string moe_layer_json(const MoeLayerReport& report) {
  OrderedJson checks = OrderedJson::array();
  for (const StageCheck& c : report.checks)
    checks.push_back({{"stage", c.stage}, {"kernel", c.kernel}, {"share_of_bound", c.worst}});
  return finish({{"model", report.model},
                 {"device", report.device},
                 {"layout", report.layout},
                 {"weight_bytes", report.weight_bytes},
                 {"check", checks},
                 {"run", timings_json(report.timings)}});
}

std::string draft_json(const DraftReport& report) {
  return finish({{"model", report.model},
                 {"layer", report.layer},
                 {"device", report.device},
                 {"experts", report.experts},
                 {"router_dtype", report.router_dtype},
                 {"weight_bytes", report.weight_bytes},
                 {"load_seconds", report.load_seconds},
                 {"run", timings_json(report.timings)}});
}

std::string devices_json(std::span<const DeviceInfo> here, const std::string& no_gpu,
                         std::span<const DeviceInfo> known) {
  const auto listed = [](std::span<const DeviceInfo> devices) {
    OrderedJson list = OrderedJson::array();
    for (const DeviceInfo& d : devices) list.push_back(device_json(d));
    return list;
  };
  OrderedJson out = {{"here", listed(here)}, {"known", listed(known)}};
  if (!no_gpu.empty()) out["no_gpu"] = no_gpu;
  return finish(out);
}

}  // namespace sluice::apps
