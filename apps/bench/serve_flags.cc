// The flags of `sluice bench serve`, with the names that vLLM's client uses.
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "apps/bench/bench_serve_command.h"
#include "apps/common/ask_server.h"
#include "apps/common/commands.h"
#include "apps/common/flags.h"
#include "apps/subcommands.h"

namespace sluice::apps {
namespace {

constexpr int64_t kTokensMax = INT32_MAX;

// The names of the flags, which the benchmark's messages use.
constexpr DatasetNames kDatasetFlags{.path = "--dataset-path",
                                     .vocab_size = "--vocab-size",
                                     .custom_output_len = "--custom-output-len",
                                     .tokenizer = "--tokenizer"};
constexpr ServeBenchNames kBenchFlags{
    .extra_body = "--extra-body", .metadata = "--metadata", .metrics = "--percentile-metrics"};

Status set_extra_body(const std::string& text, Json* out) {
  if (text.empty()) return {};
  auto json = parse_json(text, "--extra-body");
  if (!json.ok()) return json.status();
  SLUICE_TRY(JsonAt(json.value(), "--extra-body").need_object());
  *out = std::move(json).value();
  return {};
}

const std::map<std::string, DatasetKind> kDatasets = {
    {"random", DatasetKind::kRandom}, {"sharegpt", DatasetKind::kShareGpt}, {"custom", DatasetKind::kCustom}};

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
  app->add_option("--base-url", f->base_url,
                  "such as http://127.0.0.1:8000; default: built from --host and --port")
      ->group(group)
      ->check(some_text());
  app->add_option("--host", f->host, "host of the server")
      ->capture_default_str()
      ->group(group)
      ->check(some_text());
  app->add_option("--port", f->port, "port of the server")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(1, 65535));
  add_word(app, "--backend", kBackends, &o.backend,
           "openai (default): /v1/completions; openai-chat: /v1/chat/completions")
      ->group(group);
  app->add_option("--endpoint", o.endpoint, "path to use instead of the backend's")
      ->group(group)
      ->check(word_of_head("a path such as /v1/completions", "/"));
  app->add_option("--model", o.model, "the model's name on the server; default: the first of /v1/models")
      ->group(group)
      ->check(some_text());
  app->add_option("--api-key", o.api_key, "API key, if the server requires one; or set OPENAI_API_KEY")
      ->envname("OPENAI_API_KEY")
      ->group(group)
      ->check(key_word());
  app->add_option("--timeout", o.timeout, "time limit of one request, in seconds")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0.1, kSecondsMax));
  app->add_option("--extra-body", f->extra_body, "JSON object with further fields for every request")
      ->group(group)
      ->check(some_text());
}

void add_dataset_flags(CLI::App* app, BenchFlags* f) {
  const char* group = "Data set";
  DatasetOptions& d = f->options.dataset;
  add_word(app, "--dataset-name", kDatasets, &d.kind,
           "random (default): random tokens; sharegpt: conversations; custom: lines {\"prompt\", "
           "\"output_tokens\"}")
      ->group(group);
  app->add_option("--dataset-path", d.path, "data file of sharegpt and custom")
      ->group(group)
      ->check(some_text());
  const auto count = [&](const char* flag, int64_t* value, int64_t minimum, const char* says) {
    app->add_option(flag, *value, says)
        ->capture_default_str()
        ->group(group)
        ->check(integer_between(minimum, kTokensMax));
  };
  count("--num-prompts", &f->options.num_prompts, 1, "requests per run");
  count("--random-input-len", &d.random_input_len, 1, "tokens per random prompt");
  count("--random-prefix-len", &d.random_prefix_len, 0,
        "further tokens at the front that all random prompts share");
  count("--random-output-len", &d.random_output_len, 1, "tokens to generate per random prompt");
  app->add_option("--random-range-ratio", d.random_range_ratio,
                  "sample both lengths between (1 - this) and (1 + this) times their value")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0, 1));
  count("--vocab-size", &d.vocab_size, 0, "random token ids are less than this; 0: use ids of plain words");
  app->add_option("--tokenizer", f->options.tokenizer,
                  "model directory whose tokenizer.json replaces the server's tokenize endpoint")
      ->group(group)
      ->check(some_text());
  count("--sharegpt-output-len", &d.sharegpt_output_len, 0,
        "tokens to generate; 0: the length of the conversation's reply");
  count("--custom-output-len", &d.custom_output_len, 0, "tokens to generate; 0: the line's output_tokens");
  app->add_option("--seed", f->seed, "random seed of prompts, lengths and arrivals")
      ->capture_default_str()
      ->group(group)
      ->check(seed_number());
}

void add_load_flags(CLI::App* app, BenchFlags* f) {
  const char* group = "Load";
  ServeBenchOptions& o = f->options;
  app->add_option("--request-rate", f->request_rate, "requests per second; inf: all at once")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(1e-6, std::numeric_limits<double>::infinity()));
  app->add_option("--burstiness", o.arrivals.burstiness,
                  "1: Poisson arrivals; less: burstier arrivals (gamma-distributed gaps)")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0.01, 1e6));
  add_counts(app, "--max-concurrency", &f->concurrency, 1, 1 << 20,
             "concurrent requests; several values, separated by commas: one run each; default: no limit")
      ->group(group);
  app->add_option("--num-warmups", o.num_warmups, "unmeasured warm-up requests before each run")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(0, 1 << 20));
  app->add_flag("--ignore-eos", o.ignore_eos, "always generate the requested number of tokens")->group(group);
  app->add_option("--temperature", o.temperature,
                  "sampling temperature; 0: greedy; default: the server's own")
      ->group(group)
      ->check(number_between(0, 100));
}

void add_result_flags(CLI::App* app, BenchFlags* f) {
  const char* group = "Results";
  app->add_option(
         "--percentile-metrics", f->options.metrics,
         "metrics to report: any of ttft, tpot, itl, e2el, client_queue_time, e2el_including_client_queue")
      ->delimiter(',')
      ->capture_default_str()
      ->group(group);
  app->add_option("--metric-percentiles", f->options.percents, "percentiles to report")
      ->delimiter(',')
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0, 100));
  app->add_option("--goodput", f->goodput,
                  "limits in ms of a good request, such as ttft:200 tpot:50 e2el:5000")
      ->group(group);
  app->add_option("--metadata", f->metadata, "KEY=VALUE pairs to add to the result")->group(group);
  app->add_option("--output-json", f->files.output_json,
                  "write the result to this file; several runs give an array")
      ->group(group)
      ->check(some_text());
  app->add_option("--svg", f->files.svg,
                  "write a chart of TTFT, TPOT and ITL over --max-concurrency to this file")
      ->group(group)
      ->check(some_text());
  app->add_flag("--save-result", f->files.save_result, "write one file per run, named as in vLLM")
      ->group(group);
  app->add_flag("--save-detailed", f->detailed, "include each request's times and text")->group(group);
  app->add_option("--result-dir", f->files.result_dir, "output folder of --save-result")
      ->group(group)
      ->check(some_text());
  app->add_option("--result-filename", f->files.result_filename, "file name of --save-result")
      ->group(group)
      ->check(some_text());
  app->add_flag("-q,--quiet", f->files.quiet, "print no progress")->group(group);
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
  if (!goodput.ok()) return wrong_use("--goodput: " + goodput.status().message);
  o.goodput = goodput.value();
  auto metadata = parse_metadata(f->metadata);
  if (!metadata.ok()) return wrong_use("--metadata: " + metadata.status().message);
  o.metadata = std::move(metadata).value();
  if (const Status s = set_extra_body(f->extra_body, &o.extra_body); !s.ok()) return wrong_use(s.message);
  o.arrivals.request_rate = std::isinf(f->request_rate) ? 0 : f->request_rate;
  o.arrivals.seed = o.dataset.seed = f->seed;
  if (!f->concurrency.empty()) o.max_concurrency = f->concurrency;
  if (f->detailed) f->files.detail = Detail::kEachRequest;
  return bench_serve_command(o, f->files);
}

}  // namespace

Command add_bench_serve(CLI::App& bench) {
  CLI::App* app = bench.add_subcommand("serve", "benchmark any OpenAI-compatible server under load");
  const auto flags = std::make_shared<BenchFlags>();
  flags->options.names = kBenchFlags;
  flags->options.dataset.names = kDatasetFlags;
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

}  // namespace sluice::apps
