#include "apps/bench/bench_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "apps/common/main_device.h"
#include "bandwidth.h"
#include "base/printable.h"
#include "base/random.h"
#include "report/results.h"

namespace sluice::apps {
namespace {

using Clock = std::chrono::steady_clock;

// A burst ends before the power limit lowers the GPU's clock. Sustained steps are timed after the power limit has lowered it.
constexpr int kBursts = 6;
// Of sustained work, only the second half is timed.
constexpr double kBurstMs = 20, kPauseMs = 100, kSustainedMs = 600;
constexpr int64_t kBurstStepsMin = 3;
constexpr int kPrompts = 5;  // timed prompts per length
// On a GPU, the cache is reported as too small after this many steps in which not all sequences decoded.
constexpr int64_t kStepsWithoutAll = 200;
constexpr int kCountedSteps = 8;  // untimed extra steps, in which the chosen experts are counted

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

// The number of distinct experts that the tokens of the last step chose in a layer, averaged over the layers.
Result<double> experts_of_last_step(Engine& engine) {
  const auto chosen = engine.chosen_experts();
  if (!chosen.ok()) return chosen.status();
  double sum = 0;
  for (int64_t layer = 0; layer < chosen.value().layers; ++layer)
    sum += static_cast<double>(chosen.value().distinct(layer));
  return sum / static_cast<double>(chosen.value().layers);
}

Request random_request(const Session& s, int64_t prompt, int64_t output, Random& random) {
  Request r;
  for (int64_t t = 0; t < prompt; ++t)
    r.prompt.push_back(static_cast<int32_t>(random.integer(0, s.model->config().decoder.vocab - 1)));
  r.sampling.temperature = 0;
  r.sampling.max_tokens = output;
  return r;
}

// A batch of sequences that decode together.
class Decoding {
 public:
  Decoding(Session& s, int64_t sequences, int64_t context)
      : s_(s), row_{.op = "decode", .sequences = sequences, .context = context} {}

  // Runs prefill until every sequence has its first token.
  Status begin(int64_t prompt, int64_t output) {
    Random random(7);
    for (int64_t i = 0; i < row_.sequences; ++i) {
      const auto added = s_.engine->add(random_request(s_, prompt, output, random));
      if (!added.ok()) return added.status();
      ids_.push_back(added.value());
    }
    std::set<int64_t> started;
    const auto start = Clock::now();
    while (static_cast<int64_t>(started.size()) < row_.sequences && !s_.engine->idle()) {
      const auto tokens = s_.engine->step();
      if (!tokens.ok()) return tokens.status();
      // A sequence may appear in several steps, because it decodes while later sequences are still in prefill.
      for (const GeneratedToken& token : tokens.value()) started.insert(token.request);
    }
    row_.first_token_ms = ms_since(start);
    row_.prompt_tokens_per_s = 1e3 * static_cast<double>(row_.sequences * prompt) / row_.first_token_ms;
    return {};
  }
  // Runs one step and returns its milliseconds; -1 if not all sequences decoded in it.
  Result<double> step() {
    const auto start = Clock::now();
    const auto tokens = s_.engine->step();
    if (!tokens.ok()) return tokens.status();
    const double ms = ms_since(start);
    std::set<int64_t> of;
    for (const GeneratedToken& token : tokens.value()) of.insert(token.request);
    if (std::ssize(of) != row_.sequences) return -1.0;
    tokens_ += std::ssize(tokens.value()), ++steps_;
    return ms;
  }
  // Runs steps for `ms` milliseconds, or until the sequences end, and appends their times to `times`. On a GPU it is an error if too many steps
  // do not decode all sequences: then the cache is too small, and the sequences preempt each other without end.
  Status steps(double ms, int64_t least, std::vector<double>* times) {
    double sum = 0;
    int64_t without_all = 0;
    for (int64_t i = 0; !s_.engine->idle() && (sum < ms || i < least); ++i) {
      const auto one = step();
      if (!one.ok()) return one.status();
      if (one.value() < 0 && is_gpu(*s_.device) && ++without_all > kStepsWithoutAll) return too_many();
      if (one.value() < 0) continue;
      sum += one.value();
      times->push_back(one.value());
      if (s_.device->shares_host_memory()) SLUICE_TRY(count_experts_of_last_step());
    }
    return {};
  }
  // Counts experts in further, untimed steps, because reading the choices from a GPU would slow timed steps.
  Status count_experts() {
    for (int i = 0; i < kCountedSteps && !s_.engine->idle(); ++i) {
      const auto one = step();
      if (!one.ok()) return one.status();
      if (one.value() >= 0) SLUICE_TRY(count_experts_of_last_step());
    }
    return {};
  }
  void end() {
    for (const int64_t id : ids_) s_.engine->cancel(id);
  }
  BenchRow row(const std::string& pace, const std::vector<double>& times) const {
    BenchRow row = row_;
    row.pace = pace;
    row.step_ms = quantile(times, 0.5);
    row.step_ms_p10 = quantile(times, 0.1);
    row.step_ms_p90 = quantile(times, 0.9);
    const double tokens = static_cast<double>(tokens_) / static_cast<double>(std::max<int64_t>(steps_, 1));
    if (row.step_ms > 0) row.tokens_per_s = 1e3 * tokens / row.step_ms;
    row.tokens_per_sequence = tokens / static_cast<double>(row.sequences);
    if (counted_ > 0) row.experts = experts_ / static_cast<double>(counted_);
    return row;
  }

 private:
  Status count_experts_of_last_step() {
    const auto experts = experts_of_last_step(*s_.engine);
    if (!experts.ok()) return experts.status();
    experts_ += experts.value();
    ++counted_;
    return {};
  }
  Status too_many() const {
    const std::string sequences = std::to_string(row_.sequences), context = std::to_string(row_.context);
    return {Code::kOutOfMemory,
            "bench: wanted a cache that holds " + sequences + " sequences of " + context +
                " tokens and their answers, found a cache of " + std::to_string(s_.engine->memory().tokens) +
                " tokens; lower --max-concurrency or --input-len, or use --kv-cache-dtype fp8"};
  }

  Session& s_;
  BenchRow row_;
  double experts_ = 0;  // sum over the counted steps
  int64_t counted_ = 0;
  int64_t tokens_ = 0, steps_ = 0;  // tokens and number of the steps in which all sequences decoded
  std::vector<int64_t> ids_;
};

void pause() { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(kPauseMs)); }

Status decode_on_cpu(Session& s, int64_t sequences, int64_t context, int64_t output,
                     std::vector<BenchRow>* rows) {
  Decoding d(s, sequences, context);
  SLUICE_TRY(d.begin(context, output));
  std::vector<double> times;
  SLUICE_TRY(d.steps(INFINITY, 0, &times));
  rows->push_back(d.row("", times));
  return {};
}

Status decode_on_gpu(Session& s, int64_t sequences, int64_t context, std::vector<BenchRow>* rows) {
  // Plans enough tokens for all bursts and sustained steps even at roofline speed. Half of these tokens come before the context reaches `context`,
  // so that `context` is the mean. Sequences whose prefill ends early decode while the others are in prefill.
  const DecoderConfig& config = s.engine->decoder().config();
  const double experts = expected_experts(config.moe(), sequences);
  const double floor_ms = 1e-3 * decode_floor(config, sequences, context, experts).us(s.device->info());
  const double ms = kBursts * (kBurstMs + 3 * floor_ms) + kSustainedMs;
  const auto planned =
      static_cast<int64_t>(std::ceil(ms / floor_ms)) + kBursts * (kBurstStepsMin + 2) + kCountedSteps;
  const int64_t prompt = std::max<int64_t>(context - planned / 2, 1);
  const int64_t most = s.engine->max_model_len() - prompt - 1;
  Decoding d(s, sequences, context);
  SLUICE_TRY(d.begin(prompt, most));
  std::vector<double> burst, sustained, dropped;
  for (int i = 0; i < kBursts; ++i) {
    pause();
    // Runs two steps that are not timed. They finish the steps in flight, so that the timed steps start on an idle GPU.
    SLUICE_TRY(d.steps(0, 2, &dropped));
    SLUICE_TRY(d.steps(kBurstMs, kBurstStepsMin, &burst));
  }
  SLUICE_TRY(d.steps(kSustainedMs / 2, 1, &dropped));
  SLUICE_TRY(d.steps(kSustainedMs / 2, kBurstStepsMin, &sustained));
  SLUICE_TRY(d.count_experts());
  d.end();
  rows->push_back(d.row("burst", burst));
  rows->push_back(d.row("sustained", sustained));
  return {};
}

// Runs one prompt after another. The first prompt is not timed, because it loads kernels.
Status prefill(Session& s, int64_t tokens, const std::string& pace, std::vector<BenchRow>* rows) {
  Random random(9);
  const bool sustained = pace == "sustained";
  std::vector<double> times;
  double sum = 0;
  for (int i = 0; i <= kPrompts || (sustained && sum < kSustainedMs); ++i) {
    if (pace == "burst") pause();
    const auto added = s.engine->add(random_request(s, tokens, 1, random));
    if (!added.ok()) return added.status();
    const auto start = Clock::now();
    while (!s.engine->idle())
      if (const auto step = s.engine->step(); !step.ok()) return step.status();
    if (i == 0) continue;
    times.push_back(ms_since(start));
    sum += times.back();
  }
  if (sustained) times.erase(times.begin(), times.begin() + std::ssize(times) / 2);
  BenchRow row{.op = "prefill", .pace = pace, .sequences = 1, .context = tokens};
  const auto experts = experts_of_last_step(*s.engine);
  if (!experts.ok()) return experts.status();
  row.experts = experts.value();
  row.step_ms = row.first_token_ms = quantile(times, 0.5);
  row.step_ms_p10 = quantile(times, 0.1);
  row.step_ms_p90 = quantile(times, 0.9);
  row.tokens_per_s = row.prompt_tokens_per_s = 1e3 * static_cast<double>(tokens) / row.step_ms;
  rows->push_back(row);
  return {};
}

Status check_options(const BenchOptions& o) {
  const auto at_least = [](const char* flag, int64_t value, int64_t least) -> Status {
    if (value >= least) return {};
    return invalid(std::string(flag) + ": wanted " + std::to_string(least) + " or more, found " +
                   std::to_string(value));
  };
  SLUICE_TRY(at_least("--output-len", o.output_len, 2));
  for (const int64_t n : o.input_len) SLUICE_TRY(at_least("--input-len", n, 1));
  for (const int64_t n : o.prefill_len) SLUICE_TRY(at_least("--prefill-len", n, 1));
  for (const int64_t n : o.concurrency) SLUICE_TRY(at_least("--max-concurrency", n, 1));
  const SpeculationOptions& drafts = o.model.speculation;
  if (!drafts.synthetic_acceptance.empty() && drafts.method == DraftMethod::kNone)
    return invalid("--speculative-synthetic-acceptance: needs --speculative-config, found none");
  if (!std::ranges::is_sorted(drafts.synthetic_acceptance, std::greater<>()))
    return invalid(
        "--speculative-synthetic-acceptance: wanted shares that never increase, found "
        "a larger share after a smaller one");
  return {};
}

void use_defaults(const Device& device, BenchOptions* o) {
  const bool gpu = is_gpu(device);
  if (o->input_len.empty()) o->input_len = {gpu ? 1024 : 128};
  if (o->concurrency.empty())
    o->concurrency = gpu ? std::vector<int64_t>{1, 8, 32, 64, 128, 256} : std::vector<int64_t>{1, 4};
  if (o->prefill_len.empty() && gpu) o->prefill_len = {4096, 8192};
}

// Sets the engine's limits so that all measurements fit.
void suit_model_flags(const Device& device, const BenchOptions& o, ModelFlags* f) {
  const int64_t most = std::ranges::max(o.concurrency);
  f->keep_chosen_experts = true;
  f->max_num_seqs = std::max(f->max_num_seqs.value_or(is_gpu(device) ? 1 : f->cpu_num_seqs), most);
  if (!is_gpu(device) || f->max_num_batched_tokens)
    f->max_num_batched_tokens =
        std::max(f->max_num_batched_tokens.value_or(f->cpu_num_batched_tokens), *f->max_num_seqs);
  if (f->max_model_len > 0) return;
  // Sequences must not end while steps are timed. On a GPU, max_model_len is the same for every number of drafts, because the choice
  // of kernels depends on it.
  const int64_t on_gpu = f->speculation.method == DraftMethod::kNone ? 2048 : 8192;
  const int64_t answer = is_gpu(device) ? on_gpu : o.output_len;
  f->max_model_len = std::ranges::max(o.input_len) + answer;
  for (const int64_t n : o.prefill_len) f->max_model_len = std::max(f->max_model_len, n + 2);
}

// A remark about one row, which is appended to the row's note after "; ".
std::string experts_remark(double experts, int64_t of) {
  char text[64];
  std::snprintf(text, sizeof text, "; %.1f of %lld experts", experts, static_cast<long long>(of));
  return text;
}

// The note of a row that was measured with speculative decoding.
std::string speculation_note(const BenchOptions& o, const BenchRow& row) {
  const SpeculationOptions& s = o.model.speculation;
  if (s.method == DraftMethod::kNone || row.op == "prefill") return {};
  std::string note = " " + std::string(text(s.method)) + " k " + std::to_string(s.num_speculative_tokens) +
                     (s.by_cost ? " by cost" : "");
  for (size_t i = 0; i < s.synthetic_acceptance.size(); ++i)
    note += (i == 0 ? " acceptance " : "/") + number_text(s.synthetic_acceptance[i]);
  return note;
}

Status write_csv(const BenchReport& report, const BenchOptions& o) {
  std::ofstream out(o.csv, std::ios::binary);
  out << bench::kCsvHeader << "\n";
  for (const BenchRow& b : report.rows) {
    const bool decode = b.op == "decode";
    const std::string note =
        (decode ? "context " + std::to_string(b.context) : "prompt") + report.cache_note +
        report.routing_note + speculation_note(o, b) + (b.pace.empty() ? "" : " " + b.pace) +
        experts_remark(b.experts, report.experts) +
        (b.tokens_per_sequence == 1 ? "" : "; " + number_text(b.tokens_per_sequence) + " tokens a step");
    const auto line =
        bench::csv_line({.suite = "engine",
                         .op = b.op,
                         .model = bench::csv_word(
                             std::filesystem::path(report.model + "/").parent_path().filename().string()),
                         .tokens = decode ? b.sequences : b.context,
                         .impl = "sluice",
                         .version = o.csv_version,
                         .median_us = 1e3 * b.step_ms,
                         .p10_us = 1e3 * b.step_ms_p10,
                         .p90_us = 1e3 * b.step_ms_p90,
                         .bytes = std::round(b.floor.bytes()),
                         .flops = std::round(b.floor.flops),
                         .note = note});
    if (!line.ok()) return line.status();
    out << line.value();
  }
  out.close();
  return out ? Status{} : Status{Code::kIo, o.csv + ": cannot be written"};
}

Status measure_all(Session& s, const BenchOptions& o, std::vector<BenchRow>* rows) {
  const bool gpu = is_gpu(*s.device);
  for (const int64_t tokens : o.prefill_len)
    for (const char* pace : {"burst", "sustained"}) {
      if (!gpu && std::string(pace) == "burst") continue;
      SLUICE_TRY(prefill(s, tokens, gpu ? pace : "", rows));
    }
  for (const int64_t context : o.input_len)
    for (const int64_t n : o.concurrency)
      SLUICE_TRY(gpu ? decode_on_gpu(s, n, context, rows) : decode_on_cpu(s, n, context, o.output_len, rows));
  return {};
}

}  // namespace

Result<BenchReport> bench_model(const BenchOptions& options) {
  BenchOptions o = options;
  SLUICE_TRY(check_options(o));
  auto session = open_session(o.model, [&](const Device& device, ModelFlags* flags) {
    use_defaults(device, &o);
    suit_model_flags(device, o, flags);
  });
  if (!session.ok()) return session.status();
  Session& s = session.value();
  // The memory bandwidth of a CPU is measured here; the bandwidth of a GPU is listed in dispatch/known_devices.cc.
  DeviceInfo info = s.device->info();
  if (s.device->shares_host_memory()) {
    const auto read = bench::read_bytes_per_us(*s.device);
    if (!read.ok()) return read.status();
    info.mem_bytes_per_us = read.value();
  }
  BenchReport report{.model = s.directory, .device = devices_text(s), .rows = {}};
  report.weight_bytes = weight_bytes(s);
  report.active_bytes = s.model->active_bytes();
  report.load_seconds = s.load_seconds;
  report.experts = s.model->config().decoder.moe().experts;
  if (o.model.routing == Routing::kZipf) report.routing_note = " zipf";
  report.read_bytes_per_us = info.mem_bytes_per_us;
  SLUICE_TRY(measure_all(s, o, &report.rows));
  // with the type of the KV cache that the flags requested
  const DecoderConfig& config = s.engine->decoder().config();
  if (const AttentionConfig& a = config.layers.front().attention; a.cache != CacheType::kSame)
    report.cache_note = " " + std::string(text(a.cache_type())) + " cache";
  for (BenchRow& row : report.rows) {
    row.floor = row.op == "decode" ? decode_floor(config, row.sequences, row.context, row.experts)
                                   : prefill_floor(config, row.context, row.experts);
    if (row.step_ms > 0) row.share_of_floor = row.floor.us(info) / (1e3 * row.step_ms);
  }
  if (!o.csv.empty()) SLUICE_TRY(write_csv(report, o));
  return report;
}

}  // namespace sluice::apps
