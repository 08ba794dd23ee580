#include "apps/eval/server_flags.h"

#include <algorithm>
#include <memory>

#include "apps/common/ask_server.h"
#include "apps/common/commands.h"
#include "apps/common/model_directory.h"
#include "apps/eval/eval_server_command.h"

namespace sluice::apps {
namespace {

struct EvalFlags {
  ServerEvalOptions options;
  ServerEvalFiles files;
  std::string url;
  std::vector<std::string> compare;
};

constexpr const char* kServerGroup = "A server instead of a model";

// Rejects flags that configure a model in this process, because the model runs in the server.
Status only_for_servers(const CLI::App& app) {
  constexpr std::string_view kBoth[] = {
      "--model",     "--quiet", "--temperature",      "--top-p", "--seed", "--max-tokens",
      "--questions", "--limit", "--reasoning-effort", "--json"};
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_lnames().empty() ? "" : "--" + option->get_lnames().front();
    const bool both = std::find(std::begin(kBoth), std::end(kBoth), name) != std::end(kBoth);
    if (option->count() > 0 && option->get_group() != kServerGroup && !both)
      return invalid(name + ": cannot be combined with --server, whose model runs elsewhere");
  }
  return {};
}

Status needs_server(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0 && option->get_group() == kServerGroup)
      return invalid("--" + option->get_lnames().front() + ": needs --server, found none");
  return {};
}

Status fill_options(const CLI::App& app, const EvalOptions& shared, EvalFlags* f) {
  SLUICE_TRY(only_for_servers(app));
  ServerEvalOptions& o = f->options;
  SLUICE_TRY(set_server(f->url, "--server", &o.server));
  o.model = shared.model.model;
  o.temperature = shared.sampling.temperature;
  o.top_p = shared.sampling.top_p;
  o.max_tokens = shared.sampling.max_tokens;
  if (app.count("--reasoning-effort") > 0) o.reasoning_effort = shared.chat.reasoning_effort;
  o.file.limit = shared.limit;
  o.file.seed = shared.sampling.seed.value_or(0);
  f->files.quiet = shared.model.quiet;
  if (o.task != "gsm8k" && (app.count("--train") > 0 || app.count("--num-fewshot") > 0))
    return invalid("--train, --num-fewshot: need --task gsm8k, found " + o.task);
  if (!o.reasoning_effort.empty() && o.backend == ApiBackend::kOpenai)
    return invalid("--reasoning-effort: needs --backend openai-chat, found openai");
  if (!shared.questions.empty() && (o.task != "questions" || !o.file.path.empty()))
    return invalid("--questions: cannot be combined with --data or another --task");
  if (o.task != "questions")
    return o.file.path.empty() ? invalid("--data: wanted the questions of " + o.task + ", found none")
                               : Status{};
  if (o.file.path.empty()) o.file.path = shared.questions;
  if (!o.file.path.empty()) return {};
  const auto shipped = model_directory("");
  if (!shipped.ok())
    return invalid(
        "--questions: wanted a file of questions, found none; the shipped model's eval.jsonl is not "
        "installed with this program");
  o.file.path = shipped.value() + "/eval.jsonl";
  return {};
}

}  // namespace

EvalByServer add_eval_server(CLI::App* app) {
  const auto flags = std::make_shared<EvalFlags>();
  ServerEvalOptions& o = flags->options;
  const auto add = [app](const char* flag, auto* value, const char* says) {
    return app->add_option(flag, *value, says)->group(kServerGroup);
  };
  add("--server", &flags->url,
      "such as http://127.0.0.1:8000; --model is the model's name there, default: the first of /v1/models")
      ->check(some_text());
  add("--task", &o.task, "benchmark: questions, gsm8k or gpqa")
      ->capture_default_str()
      ->check(CLI::IsMember({"questions", "gsm8k", "gpqa"}));
  add("--data", &o.file.path, "file of questions: lines of JSON, or a table whose name ends in .csv")
      ->check(some_text());
  add("--train", &o.file.shots_path,
      "file of gsm8k's worked examples; default: the first lines of --data, which are not asked then")
      ->check(some_text());
  add("--num-fewshot", &o.file.shots, "number of worked examples")
      ->capture_default_str()
      ->check(integer_between(0, 1000));
  add("--repeat", &o.repeat, "times to ask each question, with different shuffles and seeds")
      ->capture_default_str()
      ->check(integer_between(1, 1000));
  add("--max-concurrency", &o.max_concurrency, "concurrent requests")
      ->capture_default_str()
      ->check(integer_between(1, 1 << 16));
  add_word(app, "--backend", kBackends, &o.backend,
           "openai-chat (default): chat messages; openai: the bare question as a completion")
      ->group(kServerGroup);
  add("--api-key", &o.api_key, "API key, if the server requires one; or set OPENAI_API_KEY")
      ->envname("OPENAI_API_KEY")
      ->check(key_word());
  add("--timeout", &o.timeout, "time limit of one request, in seconds")
      ->capture_default_str()
      ->check(number_between(0.1, kSecondsMax));
  add("--output-json", &flags->files.output_json, "write the result with every answer to this file")
      ->check(some_text());
  add("--compare", &flags->compare,
      "compare two such result files and test the difference for significance; sends no requests")
      ->expected(2);
  return [app, flags](const EvalOptions& options, bool json) -> std::optional<int> {
    if (!flags->compare.empty()) return eval_compare_command(flags->compare[0], flags->compare[1]);
    const Status status = flags->url.empty() ? needs_server(*app) : fill_options(*app, options, flags.get());
    if (!status.ok()) return wrong_use(status.message);
    if (flags->url.empty()) return std::nullopt;
    return eval_server_command(flags->options, flags->files, json ? Format::kJson : Format::kText);
  };
}

}  // namespace sluice::apps
