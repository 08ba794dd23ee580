#include "apps/moe_layer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>

#include "backends/backends.h"
#include "base/random.h"
#include "nn/moe.h"

namespace sluice::apps {
namespace {

constexpr int64_t kCheckedTokens = 4;
constexpr int kRepeats = 7;

// Frees memory with the device that allocated it.
class Block {
 public:
  Block(Device& device, void* memory) : device_(&device), memory_(memory) {}
  ~Block() {
    if (memory_) device_->release(memory_);
  }
  Block(Block&& other) noexcept : device_(other.device_), memory_(std::exchange(other.memory_, nullptr)) {}
  Block& operator=(Block&&) = delete;
  void* get() const { return memory_; }

 private:
  Device* device_;
  void* memory_;
};

class Layer {
 public:
  static Result<std::unique_ptr<Layer>> make(Device& device, const MoeConfig& config, uint64_t seed) {
    auto layer = std::unique_ptr<Layer>(new Layer(device, config));
    Random random(seed);
    for (auto& [spec, tensor] : weight_slots(config, &layer->weights_)) {
      if (!spec.used) continue;
      SLUICE_TRY(layer->allocate(spec, tensor));
      layer->fill(spec, *tensor, random);
    }
    return layer;
  }
  const MoeWeights& weights() const { return weights_; }
  double bytes() const { return bytes_; }

  Status allocate(const SlotSpec& spec, Tensor* tensor) {
    *tensor = make_tensor(nullptr, spec.dtype, {}, Backend::kCpu);
    tensor->rank = static_cast<int8_t>(spec.rank);
    tensor->shape = spec.shape;
    int64_t stride = 1;
    for (int i = spec.rank - 1; i >= 0; --i) tensor->stride[i] = stride, stride *= spec.shape[i];
    const auto bytes = static_cast<size_t>(bytes_of(spec.dtype, stride));
    Result<void*> memory = device_.allocate(bytes);
    if (!memory.ok()) return memory.status();
    blocks_.emplace_back(device_, memory.value());
    bytes_ += static_cast<double>(bytes);
    tensor->data = memory.value();
    return {};
  }

 private:
  Layer(Device& device, const MoeConfig& config) : device_(device), config_(config) {}

  // Weights of unit gain, so that activations neither vanish nor overflow: their root mean square is about
  // 1 / sqrt(width). Random bytes are their own random permutation, so packed weights are filled in place.
  void fill(const SlotSpec& spec, const Tensor& t, Random& random) {
    const bool down = spec.name.find(".down") != std::string_view::npos;
    const bool shared = spec.name.starts_with("shared");
    const int64_t width =
        down ? (shared ? config_.shared_intermediate : config_.intermediate) : config_.hidden;
    const int gain = -static_cast<int>(std::lround(std::log2(std::sqrt(static_cast<double>(width)))));
    const int64_t n = elements_of(t);
    if (spec.name.ends_with("_scale")) {
      // Uniform e2m1 codes have a root mean square of 2.9, about 2^1.5.
      for (int64_t i = 0; i < n; ++i)
        t.as<uint8_t>()[i] = static_cast<uint8_t>(127 + gain - 2 + random.integer(0, 1));
    } else if (t.dtype == DType::kU8 && (shared ? config_.shared_w : config_.expert_w) == DType::kBF16) {
      for (int64_t i = 0; i < n / 2; ++i) {  // sign and mantissa at random, one exponent
        const uint32_t bits = random.bits();
        t.as<uint16_t>()[i] =
            static_cast<uint16_t>((bits & 0x807Fu) | static_cast<uint32_t>(127 + gain) << 7);
      }
    } else if (t.dtype == DType::kU8) {
      for (int64_t i = 0; i + 16 <= n; i += 16) {
        const auto words = philox(random.bits(), static_cast<uint64_t>(i));
        std::memcpy(t.as<uint8_t>() + i, words.data(), 16);
      }
    } else if (t.dtype == DType::kI32) {
      for (int64_t i = 0; i < n; ++i)  // neighbouring slots get different experts
        t.as<int32_t>()[i] = static_cast<int32_t>((random.bits() % 64 * config_.top_k + i) % config_.experts);
    } else {
      const double scale = spec.name == "router" ? 1 / std::sqrt(static_cast<double>(width)) : 0.1;
      for (int64_t i = 0; i < n; ++i) {
        const auto value = static_cast<float>(random.normal() * scale);
        if (t.dtype == DType::kBF16) t.as<BF16>()[i] = to_bf16(value);
        if (t.dtype == DType::kF32) t.as<float>()[i] = value;
      }
    }
  }

  Device& device_;
  MoeConfig config_;
  MoeWeights weights_;
  std::vector<Block> blocks_;
  double bytes_ = 0;
};

// Everything one call of the layer touches besides its weights.
struct Step {
  MoeIo io;
  Workspace workspace;
};

Result<Step> make_step(Layer& layer, const Moe& moe, int64_t tokens, Random& random) {
  Step step;
  const MoeConfig& c = moe.config();
  const auto floats = [&](Tensor* t) -> Status {
    SLUICE_TRY(layer.allocate(slot("x", Role::kIn, c.x, {tokens, c.hidden}), t));
    for (int64_t i = 0; i < elements_of(*t); ++i)
      t->as<BF16>()[i] = to_bf16(static_cast<float>(random.normal()));
    return {};
  };
  SLUICE_TRY(floats(&step.io.x));
  SLUICE_TRY(floats(&step.io.y));
  if (c.residual) SLUICE_TRY(floats(&step.io.residual));
  if (c.method == RoutingMethod::kHash) {
    SLUICE_TRY(layer.allocate(slot("token_ids", Role::kIn, DType::kI32, {tokens}), &step.io.token_ids));
    for (int64_t i = 0; i < tokens; ++i)
      step.io.token_ids.as<int32_t>()[i] = static_cast<int32_t>(random.integer(0, c.hash_vocab - 1));
  }
  Tensor scratch;
  SLUICE_TRY(layer.allocate(
      slot("workspace", Role::kIn, DType::kU8, {static_cast<int64_t>(moe.workspace_bytes())}), &scratch));
  step.workspace = {scratch.as<std::byte>(), moe.workspace_bytes()};
  return step;
}

std::vector<std::byte> bytes_at(const Tensor& t) {
  const auto* begin = t.as<std::byte>();
  return {begin, begin + bytes_of(t.dtype, elements_of(t))};
}

Result<StepTiming> time_step(Device& device, const Moe& moe, const Layer& layer, const Step& step) {
  const Stream stream = device.stream();
  StepTiming out{.tokens = step.io.x.shape[0]};
  SLUICE_TRY(moe.forward(step.io, layer.weights(), step.workspace, stream));
  SLUICE_TRY(device.wait(stream));
  const std::vector<std::byte> eager = bytes_at(step.io.y);
  auto recording =
      device.record(stream, [&] { return moe.forward(step.io, layer.weights(), step.workspace, stream); });
  if (!recording.ok()) return recording.status();
  std::vector<double> ms;
  for (int i = 0; i < kRepeats; ++i) {
    const auto begin = Clock::now();
    SLUICE_TRY(device.replay(*recording.value(), stream));
    SLUICE_TRY(device.wait(stream));
    ms.push_back(ms_since(begin));
    out.same_bits &= bytes_at(step.io.y) == eager;
  }
  out.take(std::move(ms));
  out.kernels = moe.kernels(out.tokens);
  return out;
}

Status check_memory(const MoeConfig& config, int64_t tokens_max) {
  MoeWeights unused;
  double need = 0;
  for (const auto& [spec, tensor] : weight_slots(config, &unused)) {
    double elements = spec.used ? 1 : 0;
    for (int i = 0; i < spec.rank; ++i) elements *= static_cast<double>(spec.shape[i]);
    need += elements * bits_of(spec.dtype) / 8;
  }
  need += static_cast<double>(tokens_max * config.top_k) *
          static_cast<double>(config.hidden * 4 + config.intermediate * 2);
  const double have =
      static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (need <= have) return {};
  char line[160];
  std::snprintf(line, sizeof line, "moe: memory: wanted %.1f GiB for this layer, found %.1f GiB free",
                need / 0x1p30, have / 0x1p30);
  return out_of_memory(line);
}

void print(std::ostream* words, const char* format, ...) __attribute__((format(printf, 2, 3)));
void print(std::ostream* words, const char* format, ...) {
  if (!words) return;
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  *words << line << std::flush;
}

Result<MoeConfig> checked_config(const MoeLayerOptions& options) {
  Result<MoeConfig> config = known_moe(options.model);
  if (!config.ok()) return config;
  if (options.tokens.empty()) return invalid("tokens: wanted at least one count, found none");
  for (int64_t tokens : options.tokens)
    if (tokens < 1 || tokens > 16384)
      return invalid("tokens: wanted 1 to 16384, found " + std::to_string(tokens));
  return config;
}

// A stage outside of its bound is an error that names it.
Status check_stages(const Moe& moe, Layer& layer, Stream stream, Random& random, std::ostream* words,
                    MoeLayerReport* report) {
  Result<Step> step = make_step(layer, moe, kCheckedTokens, random);
  if (!step.ok()) return step.status();
  auto checks = moe.check(step.value().io, layer.weights(), step.value().workspace, stream);
  if (!checks.ok()) return checks.status();
  report->checks = std::move(checks).value();
  std::string wrong;
  for (const StageCheck& c : report->checks) {
    print(words, "         %-13s %-42s %8.4f  %s\n", c.stage.c_str(), c.kernel.c_str(), c.worst,
          c.worst <= 1 ? "ok" : "WRONG");
    if (c.worst > 1) wrong += "\n  " + c.stage + " (" + c.kernel + "): " + c.detail;
  }
  if (wrong.empty()) return {};
  return {Code::kCorrupt, "moe: stages outside of their error bounds:" + wrong};
}

}  // namespace

Result<MoeLayerReport> run_moe_layer(const MoeLayerOptions& options, std::ostream* words) {
  Result<MoeConfig> config = checked_config(options);
  if (!config.ok()) return config.status();
  const int64_t most = *std::max_element(options.tokens.begin(), options.tokens.end());
  const int64_t tokens_max = std::max(most, kCheckedTokens);
  SLUICE_TRY(check_memory(config.value(), tokens_max));
  Result<std::unique_ptr<Device>> opened = open_device({.threads = options.threads});
  if (!opened.ok()) return opened.status();
  Device& device = *opened.value();
  Result<std::unique_ptr<Moe>> planned = Moe::plan(device, config.value(), tokens_max);
  if (!planned.ok()) return planned.status();
  const Moe& moe = *planned.value();

  MoeLayerReport report{.model = options.model,
                        .device = text(device.info()),
                        .layout = std::string(word(config.value().layout)),
                        .checks = {},
                        .timings = {}};
  print(words, "%s: one MoE layer on %s\n", report.model.c_str(), report.device.c_str());
  const auto begin = Clock::now();
  Result<std::unique_ptr<Layer>> made = Layer::make(device, config.value(), options.seed);
  if (!made.ok()) return made.status();
  Layer& layer = *made.value();
  report.weight_bytes = layer.bytes();
  print(words, "weights  %.0f MB, random, in layout %s, made in %.1f s\n", report.weight_bytes / 1e6,
        report.layout.c_str(), ms_since(begin) / 1e3);
  print(
      words,
      "\ncheck    each stage of %d tokens against its double-precision reference: worst share of its bound\n",
      static_cast<int>(kCheckedTokens));
  Random random(options.seed + 1);
  SLUICE_TRY(check_stages(moe, layer, device.stream(), random, words, &report));

  print(words, "\nrun      %8s %10s %10s %10s %11s  same bits from run to run\n", "tokens", "ms", "fastest",
        "slowest", "tokens/s");
  bool same = true;
  for (int64_t tokens : options.tokens) {
    Result<Step> step = make_step(layer, moe, tokens, random);
    if (!step.ok()) return step.status();
    Result<StepTiming> timed = time_step(device, moe, layer, step.value());
    if (!timed.ok()) return timed.status();
    const StepTiming& t = report.timings.emplace_back(std::move(timed).value());
    print(words, "         %8lld %10.2f %10.2f %10.2f %11.0f  %s\n", static_cast<long long>(t.tokens),
          t.median_ms, t.fastest_ms, t.slowest_ms, 1e3 * static_cast<double>(t.tokens) / t.median_ms,
          t.same_bits ? "yes" : "NO");
    same &= t.same_bits;
  }
  if (!same) return Status{Code::kCorrupt, "moe: the layer gave different bits from run to run"};
  return report;
}

}  // namespace sluice::apps
