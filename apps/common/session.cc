#include "apps/common/session.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "apps/common/main_device.h"
#include "apps/common/progress.h"
#include "apps/common/session_lines.h"
#include "backends/backends.h"

namespace sluice::apps {
namespace {

constexpr int64_t kDefaultContextMax = 8192;
constexpr int64_t kGpuNumSeqs = 256, kGpuNumBatchedTokens = 8192;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int64_t batched_tokens(const ModelFlags& f, const Device& device) {
  return f.max_num_batched_tokens.value_or(is_gpu(device) ? kGpuNumBatchedTokens : f.cpu_num_batched_tokens);
}

// Plans an MoE layer as the engine will do, so that unsupported kernels are reported before gigabytes are read.
Status check_moe_backend(const ModelFlags& f, const Session& s, DType x, Device& device) {
  const std::string& directory = s.directory;
  const LoadFormat format = s.format;
  const bool names_kernels = !f.moe_backend.prefill.empty() || !f.moe_backend.decode.empty();
  if (!names_kernels && !f.fp8_activations) return {};
  Result<ModelConfig> config = read_model_config(directory);
  if (!config.ok()) return config.status();
  const auto files = Checkpoint::open(directory);
  if (format == LoadFormat::kSafetensors && !files.ok()) return files.status();
  if (format == LoadFormat::kSafetensors) SLUICE_TRY(fit_to_files(*files.value(), &config.value()));
  MoeConfig moe = config.value().decoder.with_activations(x).with_fp8_activations(f.fp8_activations).moe();
  moe.layout = layout_for(device.info().backend);
  SLUICE_TRY(check_moe_activations(moe, device.info(), device.catalog()));
  return Moe::plan(device, moe, batched_tokens(f, device), {.batch_invariant = f.batch_invariant},
                   f.moe_backend)
      .status();
}

// Finds the directory of the draft head. Runs before the model is read, which may take minutes.
Status find_draft_head(const ModelFlags& flags, Session* s) {
  if (flags.speculation.method != DraftMethod::kEagle3) return {};
  if (flags.draft_model.empty() && !is_shipped_model(flags.model))
    return invalid("--speculative-config: model: wanted the directory of a draft head for " + flags.model +
                   ", found none");
  const Result<std::string> directory =
      flags.draft_model.empty() ? shipped_draft_head() : model_directory(flags.draft_model);
  if (!directory.ok()) return directory.status();
  s->draft_directory = directory.value();
  return {};
}

// The device on which the experts of the draft layer run.
Result<Device*> draft_experts(const ModelFlags& flags, const Session& s) {
  const std::string& name = flags.draft_moe_backend;
  if (name.empty()) return s.experts ? s.experts.get() : s.device.get();
  std::string open;
  for (Device* device : {s.device.get(), s.experts.get()}) {
    if (!device) continue;
    if (name == text(device->info().backend)) return device;
    open += (open.empty() ? "" : " or ") + std::string(text(device->info().backend));
  }
  return invalid("--speculative-config: moe_backend: wanted a device of the model, " + open + ", found " +
                 name);
}

Status load_draft_layer(const ModelFlags& flags, DType x, Session* s) {
  if (!has_draft_layer(flags.speculation.method)) return {};
  DraftLoadOptions o{.x = x, .format = s->format};
  const auto keep = [&](Result<std::unique_ptr<LoadedDraft>> made) -> Status {
    if (!made.ok()) return made.status();
    return s->draft_head = std::move(made).value(), Status{};
  };
  if (flags.speculation.method == DraftMethod::kEagle3)
    return keep(LoadedDraft::load_eagle3(*s->device, s->draft_directory, *s->model, o));
  const Result<Device*> experts = draft_experts(flags, *s);
  if (!experts.ok()) return experts.status();
  o.experts = experts.value();
  if (flags.draft_router_dtype == "bfloat16") o.router_logits = DType::kBF16;
  s->draft_directory = s->directory;
  return keep(LoadedDraft::load_mtp(*s->device, s->directory, *s->model, o));
}

}  // namespace

Status check_moe_activations(const MoeConfig& config, const DeviceInfo& device, const Catalog& catalog) {
  Status status = check_fp8_activations(config, device, catalog);
  if (!status.ok()) status.message = "--moe-activations fp8: " + status.message;
  return status;
}

EngineOptions engine_options(const ModelFlags& f, const ModelConfig& config, const Device& device) {
  EngineOptions o;
  o.max_model_len = f.max_model_len ? f.max_model_len : std::min(config.context, kDefaultContextMax);
  if (!f.max_model_len && config.generation.max_length)
    o.max_model_len = std::min(o.max_model_len, *config.generation.max_length);
  o.max_num_batched_tokens = batched_tokens(f, device);
  o.max_num_seqs = f.max_num_seqs.value_or(is_gpu(device) ? std::min(kGpuNumSeqs, o.max_num_batched_tokens)
                                                          : f.cpu_num_seqs);
  o.mixed_prefill_tokens = f.mixed_prefill_tokens;
  o.kv_cache_bytes = static_cast<int64_t>(f.kv_cache_gib * (1 << 30));
  o.memory_utilization = is_gpu(device) ? f.gpu_memory_utilization : 0;
  o.policy.batch_invariant = f.batch_invariant;
  o.prefix_cache = f.prefix_caching;
  o.speculation = f.speculation;
  o.steps_ahead = f.steps_ahead;
  o.count_experts = f.count_experts;
  o.keep_chosen_experts = f.keep_chosen_experts;
  if (f.max_cudagraph_capture_size)
    o.recorded_sequences = std::min(*f.max_cudagraph_capture_size, o.max_num_seqs);
  if (f.enforce_eager) o.recorded_sequences = 0;
  return o;
}

Result<DType> dtype_of(const std::string& name) {
  if (name == "auto" || name == "bfloat16") return DType::kBF16;
  if (name == "float32") return DType::kF32;
  const std::string known[] = {"auto", "bfloat16", "float32"};
  return unknown_name("--dtype", name, known);
}

Result<CacheType> cache_type_of(const std::string& name, DType x) {
  if (name == "auto") return CacheType::kSame;
  if (name == "fp8" || name == "fp8_e4m3") return CacheType::kE4M3;
  if (name == "bfloat16") {
    if (x == DType::kBF16) return CacheType::kSame;
    return invalid(std::string("--kv-cache-dtype bfloat16: needs --dtype bfloat16, found ") + text(x));
  }
  const std::string known[] = {"auto", "bfloat16", "fp8", "fp8_e4m3"};
  return unknown_name("--kv-cache-dtype", name, known);
}

Result<LoadFormat> load_format_of(const std::string& name) {
  if (name == "auto" || name == "safetensors") return LoadFormat::kSafetensors;
  if (name == "dummy") return LoadFormat::kDummy;
  const std::string known[] = {"auto", "safetensors", "dummy"};
  return unknown_name("--load-format", name, known);
}

Result<Session> open_session(const ModelFlags& requested, const SuitFlags& suit) {
  ModelFlags flags = requested;
  const auto start = std::chrono::steady_clock::now();
  Session s;
  const Result<DType> dtype = dtype_of(flags.dtype);
  if (!dtype.ok()) return dtype.status();
  const Result<CacheType> cache = cache_type_of(flags.kv_cache_dtype, dtype.value());
  if (!cache.ok()) return cache.status();
  const Result<LoadFormat> format = load_format_of(flags.load_format);
  if (!format.ok()) return format.status();
  if (flags.routing && format.value() != LoadFormat::kDummy)
    return invalid("--routing: needs --load-format dummy, found " + flags.load_format);
  SLUICE_TRY(check_tensor_parallel(flags));
  SLUICE_TRY(find_draft_head(flags, &s));
  const Result<std::string> directory = model_directory(flags.model);
  if (!directory.ok()) return directory.status();
  s.directory = directory.value(), s.format = format.value();
  SLUICE_TRY(open_devices(flags, &s));
  if (suit) suit(*s.device, &flags);
  if (!flags.experts.empty()) {
    auto experts = open_device({.backend = Backend::kCuda});
    if (!experts.ok()) return experts.status();
    s.experts = std::move(experts).value();
  }
  SLUICE_TRY(check_moe_backend(flags, s, dtype.value(), s.experts ? *s.experts : *s.device));
  LoadOptions options{
      .x = dtype.value(),
      .fp8_activations = flags.fp8_activations,
      .experts = s.experts.get(),
      .slice = {.expert_parallel = flags.expert_parallel || flags.expert_parallel_size.value_or(1) > 1},
      .policy = {.batch_invariant = flags.batch_invariant},
      .backend = flags.moe_backend,
      .format = format.value(),
      .routing = flags.routing.value_or(Routing::kUniform)};
  const bool dummy = options.format == LoadFormat::kDummy;
  if (!flags.quiet && people_are_watching())
    options.progress = [bar = ProgressBar(dummy ? "Making random weights" : "Loading safetensors")](
                           const LoadProgress& p) mutable { bar(p.bytes_done, p.bytes_total); };
  SLUICE_TRY(load_slices(options, &s));
  const ModelConfig& config = s.model->config();
  if (flags.max_model_len > config.context)
    return invalid("--max-model-len: wanted at most " + std::to_string(config.context) +
                   " (max_position_embeddings), found " + std::to_string(flags.max_model_len));
  SLUICE_TRY(load_draft_layer(flags, dtype.value(), &s));
  EngineOptions step = engine_options(flags, config, *s.device);
  if (s.draft_head) {
    step.draft_head = DraftHead{s.draft_head->config(),
                                &s.draft_head->weights(),
                                {.device = s.draft_head->experts(), .backend = flags.moe_backend}};
    if (flags.drafts_from_head)
      step.speculation.num_speculative_tokens = std::min(
          kDraftsMax, s.draft_head->speculative_tokens().value_or(step.speculation.num_speculative_tokens));
  }
  step.experts = {.device = s.experts.get(), .backend = flags.moe_backend};
  std::vector<DecoderConfig> slices;
  for (const auto& slice : s.other_models)
    slices.push_back(slice->config().decoder.with_caches(cache.value()));
  step.group = s.group.get();
  for (size_t i = 0; i < slices.size(); ++i)
    step.other_ranks.push_back({s.other_devices[i].get(), &slices[i], &s.other_models[i]->weights()});
  auto engine = Engine::make(*s.device, config.decoder.with_caches(cache.value()), s.model->weights(), step);
  if (!engine.ok()) {
    Status status = engine.status();
    constexpr std::string_view kSetting = "kv_cache_bytes: ";
    if (flags.kv_cache_gib > 0 && status.message.starts_with(kSetting))
      status.message = "--kv-cache-gib, in bytes: " + status.message.substr(kSetting.size());
    return status;
  }
  s.engine = std::move(engine).value();
  s.load_seconds = seconds_since(start);
  if (flags.quiet) return s;
  for (const SessionLine& line : lines_about(s)) std::fprintf(stderr, "%s\n", line.text.c_str());
  return s;
}

}  // namespace sluice::apps
