#include "apps/session.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "apps/progress.h"
#include "backends/backends.h"

namespace sluice::apps {
namespace {

constexpr int64_t kDefaultContextMax = 8192;
constexpr const char* kShipped = "models/sluice-16e-tiny";

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string kernel_line(const Engine& engine) {
  std::string up, down;
  for (const auto& [stage, kernel] : engine.decoder().kernels(1, 1)) {
    if (stage == "experts") return kernel;
    if (stage == "experts.up") up = kernel;
    if (stage == "experts.down") down = kernel;
  }
  return up == down ? up : up + " and " + down;
}

// The directory as seen from the current one.
std::string near_name(const std::string& directory) {
  std::error_code error;
  const std::string relative = std::filesystem::proximate(directory, error).string();
  return error || relative.size() >= directory.size() ? directory : relative;
}

void say_what_was_loaded(const Session& s) {
  const ModelConfig& c = s.model->config();
  std::fprintf(
      stderr,
      "%s: %s, %lld layers, %lld experts (top %lld), %.2f GB in %.1f s\n%s: a token's experts by %s\n",
      near_name(s.directory).c_str(), c.architecture.c_str(), static_cast<long long>(c.decoder.layers()),
      static_cast<long long>(c.decoder.moe.experts), static_cast<long long>(c.decoder.moe.top_k),
      1e-9 * static_cast<double>(s.model->weight_bytes()), s.load_seconds,
      text((s.experts ? s.experts : s.device)->info()).c_str(), kernel_line(*s.engine).c_str());
}

// Plans a layer as the engine will, so that kernels that cannot run are refused before gigabytes are read.
Status check_moe_backend(const ModelFlags& f, const std::string& directory, DType x, Device& device) {
  if (f.moe_backend.prefill.empty() && f.moe_backend.decode.empty()) return {};
  const Result<ModelConfig> config = read_model_config(directory);
  if (!config.ok()) return config.status();
  MoeConfig moe = config.value().decoder.with_activations(x).moe;
  moe.layout = layout_for(device.info().backend);
  return Moe::plan(device, moe, f.max_num_batched_tokens, {.batch_invariant = f.batch_invariant},
                   f.moe_backend)
      .status();
}

EngineOptions engine_options(const ModelFlags& f, const ModelConfig& config) {
  EngineOptions o;
  o.max_model_len = f.max_model_len ? f.max_model_len : std::min(config.context, kDefaultContextMax);
  o.max_num_seqs = f.max_num_seqs;
  o.max_num_batched_tokens = f.max_num_batched_tokens;
  o.kv_cache_bytes = static_cast<int64_t>(f.kv_cache_gib * (1 << 30));
  o.policy.batch_invariant = f.batch_invariant;
  return o;
}

}  // namespace

Result<DType> dtype_of(const std::string& name) {
  if (name == "auto" || name == "bfloat16") return DType::kBF16;
  if (name == "float32") return DType::kF32;
  const std::string known[] = {"auto", "bfloat16", "float32"};
  return unknown_name("--dtype", name, known);
}

Result<std::string> shipped_model() {
  namespace fs = std::filesystem;
  std::error_code error;
  // <root>/build/<preset>/apps/sluice, or installed as <prefix>/bin/sluice with <prefix>/share/sluice.
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  for (const fs::path& root : {self.parent_path() / "../../..", self.parent_path() / "../share/sluice"}) {
    const fs::path at = root / kShipped;
    if (fs::is_directory(at, error)) return fs::weakly_canonical(at, error).string();
  }
  return invalid(std::string("no model named, and the one that ships with Sluice (") + kShipped +
                 ") is not beside this program");
}

Result<std::string> model_directory(const std::string& named) {
  return named.empty() ? shipped_model() : Result<std::string>(named);
}

Result<Session> open_session(const ModelFlags& flags) {
  const auto start = std::chrono::steady_clock::now();
  Session s;
  const Result<DType> dtype = dtype_of(flags.dtype);
  if (!dtype.ok()) return dtype.status();
  const Result<std::string> directory = model_directory(flags.model);
  if (!directory.ok()) return directory.status();
  s.directory = directory.value();
  auto device = open_device({.threads = flags.threads});
  if (!device.ok()) return device.status();
  s.device = std::move(device).value();
  if (!flags.experts.empty()) {
    auto experts = open_device({.backend = Backend::kCuda});
    if (!experts.ok()) return experts.status();
    s.experts = std::move(experts).value();
  }
  SLUICE_TRY(check_moe_backend(flags, s.directory, dtype.value(), s.experts ? *s.experts : *s.device));
  LoadOptions options{.x = dtype.value(),
                      .experts = s.experts.get(),
                      .policy = {.batch_invariant = flags.batch_invariant},
                      .backend = flags.moe_backend};
  if (!flags.quiet && people_are_watching())
    options.progress = [bar = ProgressBar("Loading safetensors")](const LoadProgress& p) mutable {
      bar(p.bytes_done, p.bytes_total);
    };
  auto model = LoadedModel::load(*s.device, s.directory, options);
  if (!model.ok()) return model.status();
  s.model = std::move(model).value();
  const ModelConfig& config = s.model->config();
  if (flags.max_model_len > config.context)
    return invalid("--max-model-len: wanted at most " + std::to_string(config.context) +
                   " (max_position_embeddings), found " + std::to_string(flags.max_model_len));
  EngineOptions step = engine_options(flags, config);
  step.experts = {.device = s.experts.get(), .backend = flags.moe_backend};
  auto engine = Engine::make(*s.device, config.decoder, s.model->weights(), step);
  if (!engine.ok()) return engine.status();
  s.engine = std::move(engine).value();
  s.load_seconds = seconds_since(start);
  if (!flags.quiet) say_what_was_loaded(s);
  return s;
}

}  // namespace sluice::apps
