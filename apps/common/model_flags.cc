// Flags of a model, of how it runs and how it is asked, spelled as vLLM spells them.
#include <functional>

#include "apps/common/flags.h"
#include "apps/common/speculative_config.h"

namespace sluice::apps {

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

namespace {

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
  app->add_option_function<std::string>(
         "--speculative-config",
         [flags](const std::string& json) {
           auto read = read_speculative_config(json);
           if (!read.ok()) throw CLI::ValidationError(read.status().message);
           flags->speculation = std::move(read).value();
         },
         R"(tokens that each step verifies ahead, as JSON: {"method": "ngram", "num_speculative_tokens": 4}; none: no)")
      ->group(group);
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

void add_sampling_flags(CLI::App* app, RequestSampling* sampling) {
  const char* group = "Sampling (defaults: generation_config.json of the model)";
  app->add_option("--temperature,--temp", sampling->temperature, "0: the likeliest token")
      ->group(group)
      ->check(number_between(0, kTemperatureMax));
  app->add_option("--top-p", sampling->top_p, "shortest set of tokens that has this share")
      ->group(group)
      ->check(number_between(0, 1));
  app->add_option("--top-k", sampling->top_k, "this many tokens; 0: all")
      ->group(group)
      ->check(integer_between(0, INT32_MAX));
  app->add_option("--min-p", sampling->min_p, "tokens with this share of the likeliest")
      ->group(group)
      ->check(number_between(0, 1));
  app->add_option("--repetition-penalty,--repeat-penalty", sampling->repetition_penalty,
                  "divides logits of tokens that have occurred, in the prompt too; 1: none")
      ->group(group)
      ->check(number_between(kRepetitionMin, kRepetitionMax));
  app->add_option("--frequency-penalty", sampling->frequency_penalty,
                  "off the logit of a token each time that the answer has it")
      ->group(group)
      ->check(number_between(-kPenaltyMax, kPenaltyMax));
  app->add_option("--presence-penalty", sampling->presence_penalty,
                  "off the logits of tokens that the answer has")
      ->group(group)
      ->check(number_between(-kPenaltyMax, kPenaltyMax));
  app->add_option("-s,--seed", sampling->seed, "of the draws")
      ->default_str("0")
      ->group(group)
      ->check(seed_number());
  app->add_option_function<int64_t>(
         "-n,--max-tokens,--n-predict,--predict",
         [sampling](int64_t most) {
           if (most > 0) sampling->max_tokens = most;
         },
         "tokens of an answer; 0: until the context is full")
      ->default_str("0")
      ->group(group)
      ->check(integer_between(0, INT32_MAX));
}

}  // namespace sluice::apps
