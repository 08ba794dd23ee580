// sluice bench serve and sluice eval --server. Flags are spelled as vLLM's client spells them.
#include "apps/cli_client.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "apps/client_commands.h"

namespace sluice::apps {
namespace {

constexpr int64_t kTokensMax = INT32_MAX;
constexpr double kSecondsMax = 1e6;

// Endpoints begin with /v1, so what ends in it means its parent.
Status set_server(const std::string& url, const char* flag, ServerUrl* out) {
  auto parsed = parse_url(url);
  if (!parsed.ok()) return invalid(std::string(flag) + ": " + parsed.status().message);
  *out = std::move(parsed).value();
  if (out->path.ends_with("/v1")) out->path.resize(out->path.size() - 3);
  return {};
}

Status set_extra_body(const std::string& text, Json* out) {
  if (text.empty()) return {};
  auto json = parse_json(text, "--extra-body");
  if (!json.ok()) return json.status();
  SLUICE_TRY(JsonAt(json.value(), "--extra-body").need_object());
  *out = std::move(json).value();
  return {};
}

// What goes into the head of a request as it stands.
CLI::Validator word_of_head(const std::string& wanted, const std::string& begin) {
  const auto check = [=](const std::string& word) -> std::string {
    const auto plain = [](char c) { return c > ' ' && c < 127; };
    if (word.starts_with(begin) && std::all_of(word.begin(), word.end(), plain)) return "";
    return "wanted " + wanted + ", found something else";  // a key is not repeated
  };
  return CLI::Validator(check, "");
}
CLI::Validator key_word() { return word_of_head("a key without spaces and ends of lines", ""); }

const std::map<std::string, ApiBackend> kBackends = {
    {"openai", ApiBackend::kOpenai}, {"vllm", ApiBackend::kOpenai}, {"openai-chat", ApiBackend::kOpenaiChat}};
const std::map<std::string, DatasetKind> kDatasets = {
    {"random", DatasetKind::kRandom}, {"sharegpt", DatasetKind::kShareGpt}, {"custom", DatasetKind::kCustom}};

template <class Value>
CLI::Option* add_word(CLI::App* app, const std::string& flag, const std::map<std::string, Value>& words,
                      Value* value, const std::string& says) {
  std::vector<std::string> known;
  for (const auto& [word, meant] : words) known.push_back(word);
  return app
      ->add_option_function<std::string>(
          flag, [value, words](const std::string& word) { *value = words.at(word); }, says)
      ->check(CLI::IsMember(known));
}

struct BenchFlags {
  ServeBenchOptions options;
  ServeBenchFiles files;
  std::string base_url, host = "127.0.0.1";
  int port = 8000;
  double request_rate = std::numeric_limits<double>::infinity();
  std::vector<int64_t> concurrency;
  std::vector<std::string> goodput, metadata;
  std::string extra_body;
  uint64_t seed = 0;
  bool detailed = false;
};

void add_server_flags(CLI::App* app, BenchFlags* f) {
  const char* group = "Server";
  ServeBenchOptions& o = f->options;
  app->add_option("--base-url", f->base_url, "as http://127.0.0.1:8000; none: of --host and --port")
      ->group(group)
      ->check(some_text());
  app->add_option("--host", f->host, "where the server is")
      ->capture_default_str()
      ->group(group)
      ->check(some_text());
  app->add_option("--port", f->port, "where it listens")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(1, 65535));
  add_word(app, "--backend", kBackends, &o.backend,
           "openai: /v1/completions, the default; openai-chat: /v1/chat/completions")
      ->group(group);
  app->add_option("--endpoint", o.endpoint, "another path for the same requests")
      ->group(group)
      ->check(word_of_head("a path as /v1/completions", "/"));
  app->add_option("--model", o.model, "its name there; none: the first of /v1/models")
      ->group(group)
      ->check(some_text());
  app->add_option("--api-key", o.api_key, "where the server wants one; or in OPENAI_API_KEY")
      ->envname("OPENAI_API_KEY")
      ->group(group)
      ->check(key_word());
  app->add_option("--timeout", o.timeout, "seconds of one request")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0.1, kSecondsMax));
  app->add_option("--extra-body", f->extra_body, "a JSON object of more fields for each request")
      ->group(group)
      ->check(some_text());
}

void add_dataset_flags(CLI::App* app, BenchFlags* f) {
  const char* group = "Data set";
  DatasetOptions& d = f->options.dataset;
  add_word(
      app, "--dataset-name", kDatasets, &d.kind,
      "random tokens, the default; sharegpt: conversations; custom: lines {\"prompt\", \"output_tokens\"}")
      ->group(group);
  app->add_option("--dataset-path", d.path, "the file of sharegpt and custom")
      ->group(group)
      ->check(some_text());
  const auto count = [&](const char* flag, int64_t* value, int64_t least, const char* says) {
    app->add_option(flag, *value, says)
        ->capture_default_str()
        ->group(group)
        ->check(integer_between(least, kTokensMax));
  };
  count("--num-prompts", &f->options.num_prompts, 1, "requests of a run");
  count("--random-input-len", &d.random_input_len, 1, "tokens of a random prompt");
  count("--random-prefix-len", &d.random_prefix_len, 0, "tokens before it that all random prompts share");
  count("--random-output-len", &d.random_output_len, 1, "tokens of its answer");
  app->add_option("--random-range-ratio", d.random_range_ratio,
                  "both lengths are drawn from 1 - this to 1 + this of them")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0, 1));
  count("--vocab-size", &d.vocab_size, 0, "random token ids are below it; 0: ids of plain words");
  app->add_option("--tokenizer", f->options.tokenizer,
                  "the model's directory: its tokenizer.json counts and makes tokens in place of the server")
      ->group(group)
      ->check(some_text());
  count("--sharegpt-output-len", &d.sharegpt_output_len, 0,
        "tokens of an answer; 0: those of the conversation's");
  count("--custom-output-len", &d.custom_output_len, 0, "tokens of an answer; 0: the line's output_tokens");
  app->add_option("--seed", f->seed, "of prompts, lengths and arrivals")
      ->capture_default_str()
      ->group(group)
      ->check(seed_number());
}

void add_load_flags(CLI::App* app, BenchFlags* f) {
  const char* group = "Load";
  ServeBenchOptions& o = f->options;
  app->add_option("--request-rate", f->request_rate, "requests that arrive a second; inf: all at once")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(1e-6, std::numeric_limits<double>::infinity()));
  app->add_option("--burstiness", o.arrivals.burstiness,
                  "1: a Poisson process; less: more bursts (gaps of a gamma distribution)")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0.01, 1e6));
  app->add_option("--max-concurrency", f->concurrency,
                  "requests under way at once; several, separated by commas: a run of each; none: no bound")
      ->delimiter(',')
      ->group(group)
      ->check(integer_between(1, 1 << 20));
  app->add_option("--num-warmups", o.num_warmups, "requests before each run that are not measured")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(0, 1 << 20));
  app->add_flag("--ignore-eos", o.ignore_eos, "answers have all tokens that were asked for")->group(group);
  app->add_option("--temperature", o.temperature, "0: the likeliest token; none: the server's own")
      ->group(group)
      ->check(number_between(0, 100));
}

void add_result_flags(CLI::App* app, BenchFlags* f) {
  const char* group = "Results";
  app->add_option("--percentile-metrics", f->options.metrics,
                  "of ttft, tpot, itl, e2el, client_queue_time, e2el_including_client_queue")
      ->delimiter(',')
      ->capture_default_str()
      ->group(group);
  app->add_option("--metric-percentiles", f->options.percents, "which percentiles")
      ->delimiter(',')
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0, 100));
  app->add_option("--goodput", f->goodput,
                  "bounds in ms that a good request keeps: ttft:200 tpot:50 e2el:5000")
      ->group(group);
  app->add_option("--metadata", f->metadata, "KEY=VALUE pairs that the result has, too")->group(group);
  app->add_option("--output-json", f->files.output_json, "gets the result; of several runs an array")
      ->group(group)
      ->check(some_text());
  app->add_option("--svg", f->files.svg, "gets TTFT, TPOT and ITL over --max-concurrency")
      ->group(group)
      ->check(some_text());
  app->add_flag("--save-result", f->files.save_result, "writes a file for each run, named as vLLM names it")
      ->group(group);
  app->add_flag("--save-detailed", f->detailed, "with every request's own times and text")->group(group);
  app->add_option("--result-dir", f->files.result_dir, "where --save-result writes")
      ->group(group)
      ->check(some_text());
  app->add_option("--result-filename", f->files.result_filename, "another name for its file")
      ->group(group)
      ->check(some_text());
  app->add_flag("-q,--quiet", f->files.quiet, "no progress")->group(group);
}

int run_bench(BenchFlags* f) {
  ServeBenchOptions& o = f->options;
  const bool v6 = f->host.find(':') != std::string::npos;
  const std::string host = v6 ? "[" + f->host + "]" : f->host;
  const std::string url =
      f->base_url.empty() ? "http://" + host + ":" + std::to_string(f->port) : f->base_url;
  if (const Status s = set_server(url, f->base_url.empty() ? "--host" : "--base-url", &o.server); !s.ok())
    return wrong_use(s.message);
  auto goodput = parse_goodput(f->goodput);
  if (!goodput.ok()) return wrong_use(goodput.status().message);
  o.goodput = goodput.value();
  auto metadata = parse_metadata(f->metadata);
  if (!metadata.ok()) return wrong_use(metadata.status().message);
  o.metadata = std::move(metadata).value();
  if (const Status s = set_extra_body(f->extra_body, &o.extra_body); !s.ok()) return wrong_use(s.message);
  o.arrivals.request_rate = std::isinf(f->request_rate) ? 0 : f->request_rate;
  o.arrivals.seed = o.dataset.seed = f->seed;
  if (!f->concurrency.empty()) o.max_concurrency = f->concurrency;
  if (f->detailed) f->files.detail = Detail::kEachRequest;
  return bench_serve_command(o, f->files);
}

struct EvalFlags {
  ServerEvalOptions options;
  ServerEvalFiles files;
  std::string url;
  std::vector<std::string> compare;
};

constexpr const char* kServerGroup = "A server in place of a model";

// Flags that say how a model runs here mean nothing to a server.
Status only_for_servers(const CLI::App& app) {
  constexpr std::string_view kBoth[] = {
      "--model",     "--quiet", "--temperature",      "--top-p", "--seed", "--max-tokens",
      "--questions", "--limit", "--reasoning-effort", "--json"};
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_lnames().empty() ? "" : "--" + option->get_lnames().front();
    const bool both = std::find(std::begin(kBoth), std::end(kBoth), name) != std::end(kBoth);
    if (option->count() > 0 && option->get_group() != kServerGroup && !both)
      return invalid(name + ": wanted no such flag with --server, whose model runs elsewhere");
  }
  return {};
}

Status needs_server(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0 && option->get_group() == kServerGroup)
      return invalid("--" + option->get_lnames().front() + ": wanted --server with it, found none");
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
  o.file.seed = shared.sampling.seed;
  f->files.quiet = shared.model.quiet;
  if (o.task != "gsm8k" && (app.count("--train") > 0 || app.count("--num-fewshot") > 0))
    return invalid("--train, --num-fewshot: wanted --task gsm8k with them, found " + o.task);
  if (!o.reasoning_effort.empty() && o.backend == ApiBackend::kOpenai)
    return invalid("--reasoning-effort: wanted --backend openai-chat with it, found openai");
  if (!shared.questions.empty() && (o.task != "questions" || !o.file.path.empty()))
    return invalid("--questions: wanted --data alone, found both or another --task");
  if (o.task != "questions")
    return o.file.path.empty() ? invalid("--data: wanted the questions of " + o.task + ", found none")
                               : Status{};
  if (o.file.path.empty()) o.file.path = shared.questions;
  if (!o.file.path.empty()) return {};
  const auto shipped = model_directory("");
  if (!shipped.ok())
    return invalid(
        "--questions: wanted a file of questions, found none, and those of the shipped model are not "
        "beside the program");
  o.file.path = shipped.value() + "/eval.jsonl";
  return {};
}

}  // namespace

Command add_bench_serve(CLI::App& bench) {
  CLI::App* app =
      bench.add_subcommand("serve", "how a server answers under load, whichever OpenAI server it is");
  const auto flags = std::make_shared<BenchFlags>();
  add_server_flags(app, flags.get());
  add_dataset_flags(app, flags.get());
  add_load_flags(app, flags.get());
  add_result_flags(app, flags.get());
  app->allow_extras();
  return {app, [app, flags] {
            if (const Status status = unknown_flag(*app); !status.ok()) return wrong_use(status.message);
            return run_bench(flags.get());
          }};
}

EvalByServer add_eval_server(CLI::App* app) {
  const auto flags = std::make_shared<EvalFlags>();
  ServerEvalOptions& o = flags->options;
  const auto add = [app](const char* flag, auto* value, const char* says) {
    return app->add_option(flag, *value, says)->group(kServerGroup);
  };
  add("--server", &flags->url,
      "as http://127.0.0.1:8000; --model is its name there, none: the first of /v1/models")
      ->check(some_text());
  add("--task", &o.task, "questions, gsm8k or gpqa")
      ->capture_default_str()
      ->check(CLI::IsMember({"questions", "gsm8k", "gpqa"}));
  add("--data", &o.file.path, "its questions: lines of JSON, or a table whose name ends in .csv")
      ->check(some_text());
  add("--train", &o.file.shots_path,
      "gsm8k's worked examples; none: the front of --data, which is not asked then")
      ->check(some_text());
  add("--num-fewshot", &o.file.shots, "how many worked examples")
      ->capture_default_str()
      ->check(integer_between(0, 1000));
  add("--repeat", &o.repeat, "each question so often, with other shuffles and seeds")
      ->capture_default_str()
      ->check(integer_between(1, 1000));
  add("--max-concurrency", &o.max_concurrency, "requests at once")
      ->capture_default_str()
      ->check(integer_between(1, 1 << 16));
  add_word(app, "--backend", kBackends, &o.backend,
           "openai-chat, the default; openai: the question as it stands")
      ->group(kServerGroup);
  add("--api-key", &o.api_key, "where the server wants one; or in OPENAI_API_KEY")
      ->envname("OPENAI_API_KEY")
      ->check(key_word());
  add("--timeout", &o.timeout, "seconds of one request")
      ->capture_default_str()
      ->check(number_between(0.1, kSecondsMax));
  add("--output-json", &flags->files.output_json, "gets the result with every answer")->check(some_text());
  add("--compare", &flags->compare, "two such results: which is better, and how sure that is; asks nobody")
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
