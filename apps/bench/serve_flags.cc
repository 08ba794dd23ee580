// The flags of sluice bench serve, spelled as vLLM's client spells them.
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
  add_counts(app, "--max-concurrency", &f->concurrency, 1, 1 << 20,
             "requests under way at once; several, separated by commas: a run of each; none: no bound")
      ->group(group);
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

}  // namespace sluice::apps
