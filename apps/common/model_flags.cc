// Flags of the model, of its execution and of its chats, with vLLM's names.
#include <functional>
#include <memory>

#include "apps/common/flags.h"
#include "apps/common/speculative_config.h"

namespace sluice::apps {

// CLI11 processes options in the order of their declaration, so the flags for decode or prefill override the flag for both.
void add_moe_backend(CLI::App* app, MoeBackend* backend, const std::string& group) {
  CLI::Option* options[] = {
      app->add_option_function<std::string>(
          "--moe-backend,--moe-runner-backend",
          [backend](const std::string& kernel) { backend->prefill = backend->decode = kernel; },
          "kernel of the experts, such as cuda.expert_gemm.mxfp4_tile_sm90 or its last part; "
          "auto: the fastest"),
      app->add_option("--moe-backend-prefill", backend->prefill,
                      "kernel of the experts in prefill; default: --moe-backend"),
      app->add_option("--moe-backend-decode", backend->decode,
                      "kernel of the experts in decode; default: --moe-backend"),
      app->add_option("--moe-decode-tokens", backend->decode_tokens,
                      "steps of at most this many tokens count as decode")
          ->capture_default_str()
          ->check(integer_between(0, kStepTokensMax))};
  if (group.empty()) return;
  for (CLI::Option* option : options) option->group(group);
}

void add_moe_activations(CLI::App* app, bool* fp8, const std::string& group) {
  app->add_option_function<std::string>(
         "--moe-activations", [fp8](const std::string& word) { *fp8 = word == "fp8"; },
         "inputs of the experts' products. fp8: rounded to FP8 for counts of tokens at which that is faster, "
         "on Hopper with "
         "experts in MXFP4 or FP8; bf16: never rounded. Default: bf16")
      ->group(group)
      ->check(CLI::IsMember({"bf16", "fp8"}));
}

// --routing applies only to random weights.
CLI::Option* add_routing(CLI::App* app, const std::function<void(Routing)>& take) {
  return app
      ->add_option_function<std::string>(
          "--routing",
          [take](const std::string& word) { take(word == "zipf" ? Routing::kZipf : Routing::kUniform); },
          "routing of random weights; uniform: all experts are equally likely; zipf: an expert's probability "
          "is proportional "
          "to 1/rank; default: uniform")
      ->check(CLI::IsMember({"uniform", "zipf"}));
}

namespace {

constexpr double kKvCacheGibMax = 1 << 20;  // 1 PiB

// Helpers of add_model_flags(). CLI11 lists flags in the order of their declaration.
void add_weight_flags(CLI::App* app, ModelFlags* flags, const char* group) {
  app->add_option("model,-m,--model,--model-path", flags->model,
                  "a Hugging Face model directory, or the name of a model in the Hugging Face cache; "
                  "default: the model "
                  "that ships with Sluice")
      ->group(group)
      ->check(some_text());
  app->add_option("--load-format", flags->load_format,
                  "auto and safetensors: load the files; dummy: random weights with config.json's shapes")
      ->capture_default_str()
      ->group(group);
  add_routing(app, [flags](Routing routing) { flags->routing = routing; })->group(group);
  app->add_option("--dtype", flags->dtype, "type of activations: auto, bfloat16, float32")
      ->capture_default_str()
      ->group(group);
  app->add_option("--kv-cache-dtype", flags->kv_cache_dtype,
                  "type of the KV cache: auto (as activations), bfloat16, fp8 or fp8_e4m3 (half the bytes, "
                  "3 mantissa bits)")
      ->capture_default_str()
      ->group(group);
}

void take_speculative_config(SpeculativeConfig from, ModelFlags* flags) {
  flags->speculation = std::move(from.options);
  flags->draft_model = std::move(from.model);
  flags->drafts_from_head = from.count_from_head;
  flags->draft_moe_backend = std::move(from.moe_backend);
  flags->draft_router_dtype = std::move(from.router_dtype);
}

// SGLang's flags for what vLLM has in --speculative-config.
void add_sglang_speculation(CLI::App* app, ModelFlags* flags, const char* group) {
  const auto f = std::make_shared<SglangSpeculation>();
  app->add_option("--speculative-algorithm", f->algorithm,
                  "draft method, by SGLang's name: EAGLE3, NEXTN, EAGLE or NGRAM")
      ->group(group);
  app->add_option("--speculative-draft-model-path", f->draft_model_path, "directory of the EAGLE3 draft head")
      ->group(group);
  app->add_option("--speculative-num-steps", f->num_steps, "draft tokens that each step verifies")
      ->group(group)
      ->check(integer_between(1, kDraftsMax));
  app->add_option("--speculative-num-draft-tokens", f->num_draft_tokens, "--speculative-num-steps + 1")
      ->group(group)
      ->check(integer_between(2, kDraftsMax + 1));
  app->add_option("--speculative-eagle-topk", f->eagle_topk, "must be 1: drafts are a chain")->group(group);
  app->add_option("--speculative-moe-runner-backend", f->moe_runner_backend,
                  "device of a draft layer's experts: cpu or cuda; default: the model's")
      ->group(group);
  app->parse_complete_callback([app, f, flags] {
    if (!f->any()) return;
    if (app->get_option("--speculative-config")->count() > 0)
      throw CLI::ValidationError("--speculative-config: cannot be combined with --speculative-algorithm");
    const auto config = speculative_config_of(*f);
    if (!config.ok()) throw CLI::ValidationError(config.status().message);
    auto read = read_speculative_config(config.value());
    if (!read.ok()) throw CLI::ValidationError(read.status().message);
    take_speculative_config(std::move(read).value(), flags);
  });
}

void add_batch_flags(CLI::App* app, ModelFlags* flags, const char* group) {
  app->add_option("-c,--max-model-len,--context-length,--ctx-size", flags->max_model_len,
                  "maximum tokens per sequence; 0: the model's context, at most 8192")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(0, INT32_MAX));
  app->add_option(
         "--max-num-seqs,--max-running-requests,--parallel,--np", flags->max_num_seqs,
         "maximum sequences per step; default: 256 on a GPU, else " + std::to_string(flags->cpu_num_seqs))
      ->group(group)
      ->check(integer_between(1, kStepTokensMax));
  app->add_option("--max-num-batched-tokens,--chunked-prefill-size,--batch-size",
                  flags->max_num_batched_tokens,
                  "maximum tokens per step; longer prompts run in chunks; default: 8192 on a GPU, else 512")
      ->group(group)
      ->check(integer_between(1, kStepTokensMax));
  app->add_option("--max-mixed-prefill-tokens,--long-prefill-token-threshold", flags->mixed_prefill_tokens,
                  "maximum prefill tokens in a step with decoding sequences; 0: only the limit of the step")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(0, kStepTokensMax));
  app->add_option("--kv-cache-gib", flags->kv_cache_gib,
                  "size of the KV cache in GiB; 0: enough for all sequences")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0, kKvCacheGibMax));
  app->add_option_function<std::string>(
         "--speculative-config",
         [flags](const std::string& json) {
           auto read = read_speculative_config(json);
           if (!read.ok()) throw CLI::ValidationError(read.status().message);
           take_speculative_config(std::move(read).value(), flags);
         },
         R"(draft tokens that each step verifies, as JSON: {"method": "ngram", "num_speculative_tokens": 4}; none: no drafts)")
      ->group(group);
  add_sglang_speculation(app, flags, group);
  app->add_flag("--batch-invariant", flags->batch_invariant,
                "make results independent of the batch, bit by bit: use only batch-invariant kernels")
      ->group(group);
  app->add_flag("--enable-prefix-caching,!--no-enable-prefix-caching,!--disable-radix-cache",
                flags->prefix_caching,
                std::string("reuse cached keys and values of prompt prefixes; ") +
                    (flags->prefix_caching ? "on" : "off") + " by default")
      ->group(group);
}

void add_execution_flags(CLI::App* app, ModelFlags* flags, const char* group) {
  app->add_option("--gpu-memory-utilization,--mem-fraction-static", flags->gpu_memory_utilization,
                  "fraction of GPU memory for weights, activations and KV cache")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0.01, 1));
  app->add_flag("--enforce-eager,--disable-cuda-graph", flags->enforce_eager,
                "capture no CUDA graphs; launch every kernel")
      ->group(group);
  app->add_option(
         "--max-cudagraph-capture-size,--cuda-graph-max-bs", flags->max_cudagraph_capture_size,
         "decode steps of up to this many sequences are captured and replayed as CUDA graphs; default: " +
             std::to_string(kRecordedSequences) + " on a GPU, else 0")
      ->group(group)
      ->check(integer_between(0, kStepTokensMax));
  app->add_option("--steps-ahead", flags->steps_ahead,
                  "steps to enqueue before the previous step's tokens are known: 0 or 1; default: 1 on a GPU")
      ->group(group)
      ->check(integer_between(0, 1));
  app->add_option("--device", flags->device, "cpu or cuda; auto: a Hopper GPU if present, else the CPU")
      ->capture_default_str()
      ->group(group);
  app->add_option("-t,--threads", flags->threads, "CPU threads; 0: one per processor")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(0, kThreadsMax));
  app->add_option(
         "--tensor-parallel-size,--tp-size,--tp", flags->tensor_parallel_size,
         "devices that compute the model together, each with its heads and its columns of the experts")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(1, AllReduceNorm::kRanksMax));
  app->add_flag("--enable-expert-parallel", flags->expert_parallel,
                "with --tensor-parallel-size: each device has whole experts, not columns of all experts")
      ->group(group);
  app->add_option("--expert-parallel-size,--ep-size", flags->expert_parallel_size,
                  "1, or as many as --tensor-parallel-size: the same as --enable-expert-parallel")
      ->group(group)
      ->check(integer_between(1, AllReduceNorm::kRanksMax));
  app->add_option(
         "--experts", flags->experts,
         "cuda: run the MoE layers on the GPU and the rest on the CPU; default: everything on one device")
      ->group(group)
      ->check(CLI::IsMember({"cuda"}));
  add_moe_backend(app, &flags->moe_backend, group);
  add_moe_activations(app, &flags->fp8_activations, group);
  app->add_flag("-q,--quiet", flags->quiet, "print no progress bar and no lines about the model or its speed")
      ->group(group);
}

}  // namespace

void add_model_flags(CLI::App* app, ModelFlags* flags) {
  const char* group = "Model";
  add_weight_flags(app, flags, group);
  add_batch_flags(app, flags, group);
  add_execution_flags(app, flags, group);
}

void add_chat_flags(CLI::App* app, ChatFlags* flags) {
  const char* group = "Chat";
  std::string formats;
  for (const std::string& name : chat_format_names()) formats += (formats.empty() ? "" : ", ") + name;
  app->add_option("--chat-format", flags->format,
                  "the model's chat format: " + formats + "; auto: detect it from the model's files")
      ->capture_default_str()
      ->group(group);
  app->add_flag_function(
         "--thinking,!--no-thinking", [flags](int64_t count) { flags->thinking = count > 0; },
         "turn reasoning on or off, if the model supports both; default: the chat format's default")
      ->group(group);
  app->add_option("--reasoning-effort", flags->reasoning_effort, "reasoning effort: low, medium, high")
      ->capture_default_str()
      ->group(group);
  app->add_option("--system-prompt", flags->system_prompt, "instructions for the model")->group(group);
  app->add_option("--current-date", flags->current_date, "the date in the prompt, such as 2025-06-28")
      ->group(group);
}

void add_sampling_flags(CLI::App* app, SamplingParams* sampling) {
  const char* group = "Sampling (defaults: generation_config.json of the model)";
  app->add_option("--temperature,--temp", sampling->temperature, "sampling temperature; 0: greedy")
      ->group(group)
      ->check(number_between(0, kTemperatureMax));
  app->add_option("--top-p", sampling->top_p,
                  "sample from the smallest set of tokens with this total probability")
      ->group(group)
      ->check(number_between(0, 1));
  app->add_option("--top-k", sampling->top_k, "sample from this many most likely tokens; 0: all")
      ->group(group)
      ->check(integer_between(0, INT32_MAX));
  app->add_option("--min-p", sampling->min_p, "drop tokens below this fraction of the highest probability")
      ->group(group)
      ->check(number_between(0, 1));
  app->add_option("--repetition-penalty,--repeat-penalty", sampling->repetition_penalty,
                  "penalty factor on the logits of tokens in the prompt and the answer; 1: off")
      ->group(group)
      ->check(number_between(kRepetitionMin, kRepetitionMax));
  app->add_option("--frequency-penalty", sampling->frequency_penalty,
                  "subtracted from a token's logit for each occurrence in the answer")
      ->group(group)
      ->check(number_between(-kPenaltyMax, kPenaltyMax));
  app->add_option("--presence-penalty", sampling->presence_penalty,
                  "subtracted once from the logits of tokens in the answer")
      ->group(group)
      ->check(number_between(-kPenaltyMax, kPenaltyMax));
  app->add_option("-s,--seed", sampling->seed, "random seed of sampling")
      ->default_str("0")
      ->group(group)
      ->check(seed_number());
  app->add_option_function<int64_t>(
         "-n,--max-tokens,--n-predict,--predict",
         [sampling](int64_t count) {
           if (count > 0) sampling->max_tokens = count;
         },
         "maximum tokens of an answer; 0: until the context is full")
      ->default_str("0")
      ->group(group)
      ->check(integer_between(0, INT32_MAX));
}

}  // namespace sluice::apps
