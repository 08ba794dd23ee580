#include "apps/moe/moe_layer.h"

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <memory>

#include "apps/moe/random_layer.h"
#include "backends/backends.h"
#include "base/named_once.h"

namespace sluice::apps {
namespace {

constexpr int64_t kCheckedTokens = 4;
constexpr int kRepeats = 7, kReplaysOnGpu = 50;

Result<StepTiming> time_step(Device& device, const Moe& moe, const RandomLayer& layer,
                             const RandomCall& call) {
  const Stream stream = device.stream();
  StepTiming out{.tokens = call.io.x.shape[0]};
  const auto forward = [&] { return moe.forward(call.io, layer.weights(), call.workspace, stream); };
  SLUICE_TRY(forward());
  const auto eager = bytes_at(device, call.io.y);
  if (!eager.ok()) return eager.status();
  auto recording = device.record(stream, forward);
  if (!recording.ok()) return recording.status();
  // Synchronizing with a GPU takes as long as a small layer, so the time is measured over many replays with one synchronization.
  const int replays = device.shares_host_memory() ? 1 : kReplaysOnGpu;
  std::vector<double> ms;
  for (int i = 0; i < kRepeats; ++i) {
    const auto begin = Clock::now();
    for (int r = 0; r < replays; ++r) SLUICE_TRY(device.replay(*recording.value(), stream));
    SLUICE_TRY(device.wait(stream));
    ms.push_back(ms_since(begin) / replays);
    const auto now = bytes_at(device, call.io.y);
    if (!now.ok()) return now.status();
    out.same_bits &= now.value() == eager.value();
  }
  out.take(std::move(ms));
  out.kernels = moe.kernels(out.tokens);
  return out;
}

Status check_memory(const Device& device, const MoeConfig& config, int64_t tokens_max) {
  MoeWeights unused;
  const double need = bytes_of_slots(weight_slots(config, &unused)) +
                      static_cast<double>(tokens_max * config.top_k) *
                          static_cast<double>(config.hidden * 4 + config.intermediate * 2);
  const auto have = static_cast<double>(device.free_bytes());
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
  // If the name of a known layer is given, it comes first, and the fields after it override the layer's fields.
  const size_t space = options.model.find(' ');
  const bool named = options.model.substr(0, space).find('=') == std::string::npos;
  const std::string fields = !named                       ? options.model
                             : space == std::string::npos ? ""
                                                          : options.model.substr(space + 1);
  Result<MoeConfig> config =
      named ? known_moe(options.model.substr(0, space)) : Result<MoeConfig>(MoeConfig{});
  if (!config.ok()) return config;
  SLUICE_TRY(named_once(fields));
  SLUICE_TRY(parse_fields(fields, &config.value()));
  config.value().layout = layout_for(options.backend);
  if (options.tokens.empty()) return invalid("tokens: wanted at least one count, found none");
  for (int64_t tokens : options.tokens)
    if (tokens < 1 || tokens > 16384)
      return invalid("tokens: wanted 1 to 16384, found " + std::to_string(tokens));
  return config;
}

// Compares all stages with their references. The error names the stage that exceeds its error bound.
Status check_stages(Device& device, const Moe& moe, const RandomLayer& layer, Random& random,
                    std::ostream* words, MoeLayerReport* report) {
  const Result<RandomCall> call = random_call(device, moe, kCheckedTokens, random);
  if (!call.ok()) return call.status();
  auto checks = moe.check(call.value().io, layer.weights(), call.value().workspace, device.stream());
  if (!checks.ok()) return checks.status();
  report->checks = std::move(checks).value();
  std::string wrong;
  for (const StageCheck& c : report->checks) {
    print(words, "         %-17s %-42s %8.4f  %s\n", c.stage.c_str(), c.kernel.c_str(), c.worst,
          c.worst <= 1 ? "ok" : "WRONG");
    if (c.worst > 1) wrong += "\n  " + c.stage + " (" + c.kernel + "): " + c.detail;
  }
  if (wrong.empty()) return {};
  return {Code::kCorrupt, "moe: these stages exceed their error bounds:" + wrong};
}

}  // namespace

Result<MoeLayerReport> run_moe_layer(const MoeLayerOptions& options, std::ostream* words) {
  Result<MoeConfig> config = checked_config(options);
  if (!config.ok()) return config.status();
  const int64_t largest = *std::max_element(options.tokens.begin(), options.tokens.end());
  const int64_t tokens_max = std::max(largest, kCheckedTokens);
  Result<std::unique_ptr<Device>> opened =
      open_device({.backend = options.backend, .threads = options.threads});
  if (!opened.ok()) return opened.status();
  Device& device = *opened.value();
  SLUICE_TRY(check_memory(device, config.value(), tokens_max));
  Result<std::unique_ptr<Moe>> planned = Moe::plan(device, config.value(), tokens_max, {}, options.experts);
  if (!planned.ok()) return planned.status();
  const Moe& moe = *planned.value();

  MoeLayerReport report{.model = options.model,
                        .device = text(device.info()),
                        .layout = std::string(word(config.value().layout)),
                        .checks = {},
                        .timings = {}};
  print(words, "%s: one MoE layer on %s\n", report.model.c_str(), report.device.c_str());
  const auto begin = Clock::now();
  const auto made = RandomLayer::make(device, config.value(), options.seed);
  if (!made.ok()) return made.status();
  const RandomLayer& layer = *made.value();
  report.weight_bytes = layer.bytes();
  print(words, "weights  %.0f MB, random, in layout %s, generated in %.1f s\n", report.weight_bytes / 1e6,
        report.layout.c_str(), ms_since(begin) / 1e3);
  print(words,
        "\ncheck    each stage of %d tokens against its double-precision reference: worst error as a "
        "fraction of its bound\n",
        static_cast<int>(kCheckedTokens));
  Random random(options.seed + 1);
  SLUICE_TRY(check_stages(device, moe, layer, random, words, &report));

  print(words, "\nrun      %8s %10s %10s %10s %11s  same bits from run to run\n", "tokens", "ms", "fastest",
        "slowest", "tokens/s");
  bool same = true;
  for (int64_t tokens : options.tokens) {
    const Result<RandomCall> call = random_call(device, moe, tokens, random);
    if (!call.ok()) return call.status();
    Result<StepTiming> timed = time_step(device, moe, layer, call.value());
    if (!timed.ok()) return timed.status();
    const StepTiming& t = report.timings.emplace_back(std::move(timed).value());
    const int digits = device.shares_host_memory() ? 2 : 4;
    print(words, "         %8lld %10.*f %10.*f %10.*f %11.0f  %s\n", static_cast<long long>(t.tokens), digits,
          t.median_ms, digits, t.fastest_ms, digits, t.slowest_ms,
          1e3 * static_cast<double>(t.tokens) / t.median_ms, t.same_bits ? "yes" : "NO");
    same &= t.same_bits;
  }
  if (!same) return Status{Code::kCorrupt, "moe: the layer gave different bits from run to run"};
  return report;
}

}  // namespace sluice::apps
