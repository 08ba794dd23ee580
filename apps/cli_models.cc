// Subcommands that open a model. Flags are spelled as vLLM spells them.
#include <functional>
#include <memory>

#include "apps/cli.h"
#include "apps/cli_client.h"
#include "apps/commands.h"

namespace sluice::apps {

// Unknown options: the first one is named, with the nearest known one.
Status unknown_flag(const CLI::App& app) {
  std::vector<std::string> left = app.remaining();
  // Ends the flags: what stands behind it are words.
  if (const auto end = std::find(left.begin(), left.end(), "--"); end != left.end()) left.erase(end);
  if (left.empty()) return {};
  const auto flag = std::find_if(left.begin(), left.end(), [](const std::string& w) { return w[0] == '-'; });
  if (flag == left.end()) return invalid("unexpected argument '" + left.front() + "'");
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  return unknown_name("flag", flag->substr(0, flag->find('=')), known);
}

// CLI11 reads options in the order in which they are added: what one phase names stands over what both get.
void add_moe_backend(CLI::App* app, MoeBackend* backend, const std::string& group) {
  CLI::Option* options[] = {
      app->add_option_function<std::string>(
          "--moe-backend,--moe-runner-backend",
          [backend](const std::string& kernel) { backend->prefill = backend->decode = kernel; },
          "the kernel of the experts alone, as cuda.expert_gemm.mxfp4_tile_sm90 or its last part; "
          "auto: the fastest"),
      app->add_option("--moe-backend-prefill", backend->prefill, "the same for prefill; none: --moe-backend"),
      app->add_option("--moe-backend-decode", backend->decode, "the same for decode; none: --moe-backend"),
      app->add_option("--moe-decode-tokens", backend->decode_tokens,
                      "a step of at most so many tokens is decode")
          ->capture_default_str()
          ->check(integer_between(0, kStepTokensMax))};
  if (group.empty()) return;
  for (CLI::Option* option : options) option->group(group);
}

namespace {

// Of random weights.
CLI::Option* add_routing(CLI::App* app, const std::function<void(Routing)>& take) {
  return app
      ->add_option_function<std::string>(
          "--routing",
          [take](const std::string& word) { take(word == "zipf" ? Routing::kZipf : Routing::kUniform); },
          "of random weights: uniform, every expert is as likely as any other; zipf, an expert's chance "
          "falls "
          "with the inverse of its rank; none: uniform")
      ->check(CLI::IsMember({"uniform", "zipf"}));
}

constexpr double kKvCacheGibMax = 1 << 20;  // a PiB

}  // namespace

void add_model_flags(CLI::App* app, ModelFlags* flags) {
  const char* group = "Model";
  app->add_option(
         "model,-m,--model,--model-path", flags->model,
         "a Hugging Face model directory, or the name of a model in the Hugging Face cache; none: the model "
         "that ships with Sluice")
      ->group(group)
      ->check(some_text());
  app->add_option("--load-format", flags->load_format,
                  "auto and safetensors: the files; dummy: random weights of config.json's shapes")
      ->capture_default_str()
      ->group(group);
  add_routing(app, [flags](Routing routing) { flags->routing = routing; })->group(group);
  app->add_option("--dtype", flags->dtype, "of activations: auto, bfloat16, float32")
      ->capture_default_str()
      ->group(group);
  app->add_option("--kv-cache-dtype", flags->kv_cache_dtype,
                  "of keys and values: auto (as activations), bfloat16, fp8 or fp8_e4m3 (half the bytes, "
                  "rounded to 3 bits)")
      ->capture_default_str()
      ->group(group);
  app->add_option("-c,--max-model-len,--context-length,--ctx-size", flags->max_model_len,
                  "tokens of a sequence; 0: the model's context, at most 8192")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(0, INT32_MAX));
  app->add_option("--max-num-seqs,--max-running-requests,--parallel,--np", flags->max_num_seqs,
                  "sequences of one step; none: 256 on a GPU, else " + std::to_string(flags->cpu_num_seqs))
      ->group(group)
      ->check(integer_between(1, kStepTokensMax));
  app->add_option("--max-num-batched-tokens,--chunked-prefill-size,--batch-size",
                  flags->max_num_batched_tokens,
                  "tokens of one step: longer prompts are computed in chunks; none: 8192 on a GPU, else 512")
      ->group(group)
      ->check(integer_between(1, kStepTokensMax));
  app->add_option("--max-mixed-prefill-tokens,--long-prefill-token-threshold", flags->mixed_prefill_tokens,
                  "tokens of prompts in a step in which sequences decode; 0: as many as the step takes")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(0, kStepTokensMax));
  app->add_option("--kv-cache-gib", flags->kv_cache_gib, "GiB of the cache; 0: enough for all sequences")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0, kKvCacheGibMax));
  app->add_flag("--batch-invariant", flags->batch_invariant,
                "the same bits whatever else runs: only kernels whose rows do not depend on each other")
      ->group(group);
  app->add_flag(
         "--enable-prefix-caching,!--no-enable-prefix-caching,!--disable-radix-cache", flags->prefix_caching,
         std::string("a prompt begins behind the tokens whose keys and values are still in the cache; ") +
             (flags->prefix_caching ? "on" : "off") + " if neither is said")
      ->group(group);
  app->add_option("--gpu-memory-utilization,--mem-fraction-static", flags->gpu_memory_utilization,
                  "share of the GPU's memory that weights, steps and cache may take")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0.01, 1));
  app->add_flag("--enforce-eager,--disable-cuda-graph", flags->enforce_eager,
                "records no steps: every kernel is launched")
      ->group(group);
  app->add_option("--max-cudagraph-capture-size,--cuda-graph-max-bs", flags->max_cudagraph_capture_size,
                  "steps that decode up to so many sequences are recorded and replayed; none: " +
                      std::to_string(kRecordedSequences) + " on a GPU, else 0")
      ->group(group)
      ->check(integer_between(0, kStepTokensMax));
  app->add_option("--steps-ahead", flags->steps_ahead,
                  "steps that are enqueued before the last one's tokens are known: 0 or 1; none: 1 on a GPU")
      ->group(group)
      ->check(integer_between(0, 1));
  app->add_option("--device", flags->device,
                  "cpu or cuda; auto: a Hopper GPU where there is one, else the CPU")
      ->capture_default_str()
      ->group(group);
  app->add_option("-t,--threads", flags->threads, "threads of the CPU; 0: one for each processor")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(0, kThreadsMax));
  app->add_option("--experts", flags->experts,
                  "cuda: the MoE layers run there and the rest on the CPU; none: all on one device")
      ->group(group)
      ->check(CLI::IsMember({"cuda"}));
  add_moe_backend(app, &flags->moe_backend, group);
  app->add_flag("-q,--quiet", flags->quiet, "no progress bar, nothing about the model or the speed")
      ->group(group);
}

void add_chat_flags(CLI::App* app, ChatFlags* flags) {
  const char* group = "Chat";
  std::string formats;
  for (const std::string& name : chat_format_names()) formats += (formats.empty() ? "" : ", ") + name;
  app->add_option("--chat-format", flags->format,
                  "how the model reads and writes a conversation: " + formats + "; auto: as its files say")
      ->capture_default_str()
      ->group(group);
  app->add_flag_function(
         "--thinking,!--no-thinking", [flags](int64_t count) { flags->thinking = count > 0; },
         "whether a model that can do either reasons before it answers; none: as its chat format does")
      ->group(group);
  app->add_option("--reasoning-effort", flags->reasoning_effort, "low, medium, high")
      ->capture_default_str()
      ->group(group);
  app->add_option("--system-prompt", flags->system_prompt, "instructions to the model")->group(group);
  app->add_option("--current-date", flags->current_date, "the date that the model is given, as 2025-06-28")
      ->group(group);
}

namespace {

void add_sampling_flags(CLI::App* app, SamplingFlags* flags) {
  const char* group = "Sampling (defaults: generation_config.json of the model)";
  app->add_option("--temperature,--temp", flags->temperature, "0: the likeliest token")
      ->group(group)
      ->check(number_between(0, kTemperatureMax));
  app->add_option("--top-p", flags->top_p, "shortest set of tokens that has this share")
      ->group(group)
      ->check(number_between(0, 1));
  app->add_option("--top-k", flags->top_k, "this many tokens; 0: all")
      ->group(group)
      ->check(integer_between(0, INT32_MAX));
  app->add_option("--min-p", flags->min_p, "tokens with this share of the likeliest")
      ->group(group)
      ->check(number_between(0, 1));
  app->add_option("--repetition-penalty,--repeat-penalty", flags->repetition_penalty,
                  "divides logits of tokens that have occurred, in the prompt too; 1: none")
      ->group(group)
      ->check(number_between(kRepetitionMin, kRepetitionMax));
  app->add_option("--frequency-penalty", flags->frequency_penalty,
                  "off the logit of a token each time that the answer has it")
      ->group(group)
      ->check(number_between(-kPenaltyMax, kPenaltyMax));
  app->add_option("--presence-penalty", flags->presence_penalty,
                  "off the logits of tokens that the answer has")
      ->group(group)
      ->check(number_between(-kPenaltyMax, kPenaltyMax));
  app->add_option("-s,--seed", flags->seed, "of the draws")
      ->capture_default_str()
      ->group(group)
      ->check(seed_number());
  app->add_option("-n,--max-tokens,--n-predict,--predict", flags->max_tokens,
                  "tokens of an answer; 0: until the context is full")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(0, INT32_MAX));
}

}  // namespace

Command add_run(CLI::App& root) {
  CLI::App* app = root.add_subcommand("run", "asks a model; without a prompt, a conversation");
  struct Flags {
    RunOptions options;
    bool json = false, show = false, hide = false;
  };
  const auto flags = std::make_shared<Flags>();
  add_model_flags(app, &flags->options.model);
  add_chat_flags(app, &flags->options.chat);
  add_sampling_flags(app, &flags->options.sampling);
  CLI::Option* prompt = app->add_option("-p,--prompt", flags->options.prompt,
                                        "the question; -: all of standard input; none: a conversation");
  app->add_option("-f,--file", flags->options.prompt_file, "a file with the question")->excludes(prompt);
  app->add_option("-r,--stop,--reverse-prompt", flags->options.sampling.stop,
                  "the answer ends before this text; may stand several times")
      ->allow_extra_args(false)
      ->check(some_text());
  app->add_option("-j,--json-schema,--json-schema-file", flags->options.json_schema,
                  "a JSON schema that the answer matches, or a file with it")
      ->check(some_text());
  app->add_flag("--ignore-eos", flags->options.sampling.ignore_eos,
                "goes on behind the end of the answer, up to the limit of tokens");
  app->add_flag("--show-reasoning", flags->show, "prints the analysis to standard error, terminal or not");
  app->add_flag("--hide-reasoning", flags->hide, "never prints it");
  app->add_flag("--json", flags->json, "the answer as JSON, with -p or -f");
  app->add_option("--logprobs", flags->options.sampling.logprobs,
                  "log probabilities of the answer's tokens, and so many of the likeliest, with --json")
      ->check(integer_between(0, kTopLogprobsMax));
  app->allow_extras();
  return {app, [app, flags] {
            if (const Status status = unknown_flag(*app); !status.ok()) return wrong_use(status.message);
            RunOptions& o = flags->options;
            if (flags->json && !o.prompt && !o.prompt_file)
              return wrong_use("--json: wanted a prompt (-p or -f) with it, found none");
            if (o.sampling.logprobs >= 0 && !flags->json)
              return wrong_use("--logprobs: wanted --json with it, found none");
            if (flags->json) o.format = Format::kJson;
            if (flags->show) o.reasoning = Reasoning::kShow;
            if (flags->hide) o.reasoning = Reasoning::kHide;
            return run_model(o);
          }};
}

Command add_eval(CLI::App& root) {
  CLI::App* app = root.add_subcommand("eval", "accuracy of a model on questions with exact answers");
  struct Flags {
    EvalOptions options;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  flags->options.model.cpu_num_seqs = 32;
  add_model_flags(app, &flags->options.model);
  add_chat_flags(app, &flags->options.chat);
  add_sampling_flags(app, &flags->options.sampling);
  app->add_option("--questions", flags->options.questions,
                  R"(a file of lines {"task", "question", "answer"}; none: eval.jsonl beside the model)");
  app->add_option("--limit", flags->options.limit, "questions of each task; 0: all")
      ->capture_default_str()
      ->check(integer_between(0, INT64_MAX));
  app->add_flag("--json", flags->json, "the answer as JSON, with every mistake");
  const EvalByServer by_server = add_eval_server(app);
  app->allow_extras();
  return {app, [app, flags, by_server] {
            if (const Status status = unknown_flag(*app); !status.ok()) return wrong_use(status.message);
            if (const auto status = by_server(flags->options, flags->json)) return *status;
            return eval_model(flags->options, flags->json ? Format::kJson : Format::kText);
          }};
}

Command add_bench(CLI::App& root) {
  CLI::App* app = root.add_subcommand(
      "bench", "how fast a model answers on this machine, compared with what its steps must read");
  struct Flags {
    BenchOptions options;
    ReportOptions report;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  flags->options.model.prefix_caching = false;  // prompts that are alike are timed as if they were not
  add_model_flags(app, &flags->options.model);
  app->add_option("--input-len", flags->options.input_len,
                  "tokens of a prompt, on a GPU those before the steps that are timed: counts, separated by "
                  "commas; none: 1024 on a GPU, else 128")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(integer_between(1, INT32_MAX));
  app->add_option(
         "--prefill-len", flags->options.prefill_len,
         "tokens of prompts that are timed alone, likewise; none: 4096,8192 on a GPU, else no such prompts")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(integer_between(1, INT32_MAX));
  app->add_option("--csv", flags->options.csv, "a file that gets the rows in the columns of bench/measured");
  app->add_option("--csv-version", flags->options.csv_version, "the version that those rows name: a commit")
      ->capture_default_str();
  app->add_option("--output-len", flags->options.output_len, "tokens of an answer, on the CPU")
      ->capture_default_str()
      ->check(integer_between(2, INT32_MAX));
  app->add_option("--max-concurrency", flags->options.concurrency,
                  "sequences at once, likewise; none: 1,8,32,64,128,256 on a GPU, else 1,4")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(integer_between(1, kStepTokensMax));
  app->add_flag("--json", flags->json, "the answer as JSON");
  app->allow_extras();
  CLI::App* report = app->add_subcommand("report", "figures and tables from measured rows; needs no GPU");
  report
      ->add_option("--from", flags->report.from,
                   "the folder of router.csv, routing.csv, mxfp4.csv, bf16.csv, engine.csv")
      ->capture_default_str();
  report->add_option("--to", flags->report.to, "gets the pages, as Markdown and SVG")->capture_default_str();
  report->add_option("--readme", flags->report.readme,
                     "a README: gets a table of mxfp4.csv between its two marks");
  report->allow_extras();
  const Command serve = add_bench_serve(*app);
  return {app, [app, report, serve, flags] {
            if (serve.app->parsed()) return serve.run();
            const CLI::App& asked = report->parsed() ? *report : *app;
            if (const Status status = unknown_flag(asked); !status.ok()) return wrong_use(status.message);
            if (report->parsed()) return bench_report_command(flags->report);
            return bench_command(flags->options, flags->json ? Format::kJson : Format::kText);
          }};
}

Command add_inspect(CLI::App& root) {
  CLI::App* app = root.add_subcommand("inspect", "a checkpoint's tensors, and what Sluice will do with each");
  const auto model = std::make_shared<std::string>();
  const auto json = std::make_shared<bool>(false);
  app->add_option("model,--model", *model, "a directory or a .safetensors file; none: the model that ships")
      ->check(some_text());
  app->add_flag("--json", *json, "the answer as JSON");
  app->allow_extras();
  return {app, [app, model, json] {
            if (const Status status = unknown_flag(*app); !status.ok()) return wrong_use(status.message);
            return inspect_command(*model, *json ? Format::kJson : Format::kText);
          }};
}

Command add_draft(CLI::App& root) {
  CLI::App* app = root.add_subcommand(
      "draft", "the draft (MTP) layer of a checkpoint on this machine, checked and timed");
  const auto o = std::make_shared<DraftOptions>();
  const auto json = std::make_shared<bool>(false);
  app->add_option("model,--model", o->model, "a Hugging Face model directory");
  app->add_option("--layer", o->layer, "which of the model's draft layers")
      ->capture_default_str()
      ->check(integer_between(0, INT32_MAX));
  app->add_option("--tokens", o->tokens,
                  "sequences of a step to time, one token each: counts, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str()
      ->check(integer_between(1, 1024));
  app->add_option("--context", o->context, "positions before each token")
      ->capture_default_str()
      ->check(integer_between(0, (1 << 20) - 1));
  app->add_option("--dtype", o->dtype, "of activations: auto, bfloat16, float32")->capture_default_str();
  app->add_option("--experts", o->experts,
                  "device that the main model's MoE layers run on: cuda; none: the CPU")
      ->check(CLI::IsMember({"cuda"}));
  app->add_option("--router-dtype", o->router_dtype, "of the main model's router scores: float32, bfloat16")
      ->capture_default_str();
  app->add_option("--speculative-moe-backend,--speculative-moe-runner-backend", o->speculative_moe_backend,
                  "where the draft's MoE layer runs: cpu, cuda; none: where the main model's do");
  app->add_option("--speculative-router-dtype", o->speculative_router_dtype,
                  "of the draft's router scores; none: as the main model's");
  app->add_option("--threads", o->threads, "threads of the CPU; 0: one for each processor")
      ->capture_default_str()
      ->check(integer_between(0, kThreadsMax));
  app->add_option("--seed", o->seed, "of hidden states and tokens")
      ->capture_default_str()
      ->check(seed_number());
  app->add_flag("--json", *json, "the answer as JSON");
  app->allow_extras();
  return {app, [app, o, json] {
            if (const Status status = unknown_flag(*app); !status.ok()) return wrong_use(status.message);
            return draft(*o, *json ? Format::kJson : Format::kText);
          }};
}

Command add_make_checkpoint(CLI::App& root) {
  CLI::App* app = root.add_subcommand("make-checkpoint", "random weights in a model's real layout");
  const auto options = std::make_shared<MakeOptions>();
  app->add_option("directory", options->directory, "where to write: a new or empty directory");
  app->add_option("--like", options->like,
                  "the model: gpt-oss and Qwen3-MoE whole, of the others the MoE layers alone, in bf16 where "
                  "they ship in "
                  "FP8 or NVFP4")
      ->capture_default_str();
  app->add_option("--layers", options->layers, "0: as many as the model has")
      ->capture_default_str()
      ->check(integer_between(0, 1000));
  app->add_option("--seed", options->seed, "of the weights")->capture_default_str()->check(seed_number());
  add_routing(app, [options](Routing routing) { options->routing = routing; });
  app->add_option(
         "--only", options->only,
         "only the tensors whose names contain this, with the bytes that they have in the whole checkpoint")
      ->check(some_text());
  app->add_flag(
      "--config-only",
      [options](int64_t count) {
        if (count > 0) options->weights = MakeOptions::Weights::kLeaveOut;
      },
      "no weights: `--load-format dummy` makes those of seed 0 of it, with its own --routing");
  app->allow_extras();
  return {app, [app, options] {
            if (const Status status = unknown_flag(*app); !status.ok()) return wrong_use(status.message);
            return make_checkpoint_command(*options);
          }};
}

}  // namespace sluice::apps
