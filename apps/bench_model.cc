#include "apps/bench_model.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "bandwidth.h"
#include "base/random.h"

namespace sluice::apps {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

Result<BenchRow> measure(Session& s, int64_t sequences, const BenchOptions& o) {
  Random random(7);
  for (int64_t i = 0; i < sequences; ++i) {
    Request r;
    for (int64_t t = 0; t < o.input_len; ++t)
      r.prompt.push_back(static_cast<int32_t>(random.integer(0, s.model->config().decoder.vocab - 1)));
    r.sampling.temperature = 0;
    r.sampling.max_tokens = o.output_len;
    const auto added = s.engine->add(std::move(r));
    if (!added.ok()) return added.status();
  }
  BenchRow row{.sequences = sequences};
  std::vector<double> steps;
  std::set<int64_t> started;
  const auto start = Clock::now();
  while (!s.engine->idle()) {
    const bool decoding = static_cast<int64_t>(started.size()) == sequences;
    const auto step_start = Clock::now();
    const auto tokens = s.engine->step();
    if (!tokens.ok()) return tokens.status();
    if (decoding) {
      if (static_cast<int64_t>(tokens.value().size()) == sequences) steps.push_back(ms_since(step_start));
      continue;
    }
    // Sequences that began early already decode while others still read their prompts.
    for (const GeneratedToken& token : tokens.value()) started.insert(token.request);
    row.first_token_ms = ms_since(start);
  }
  row.prompt_tokens_per_s = 1e3 * static_cast<double>(sequences * o.input_len) / row.first_token_ms;
  row.step_ms = quantile(steps, 0.5);
  row.step_ms_p10 = quantile(steps, 0.1);
  row.step_ms_p90 = quantile(steps, 0.9);
  if (row.step_ms > 0) row.output_tokens_per_s = 1e3 * static_cast<double>(sequences) / row.step_ms;
  return row;
}

}  // namespace

Result<BenchReport> bench_model(const BenchOptions& options) {
  BenchOptions o = options;
  if (o.input_len < 1 || o.output_len < 2)
    return invalid("bench: wanted --input-len of 1 or more and --output-len of 2 or more, found " +
                   std::to_string(o.input_len) + " and " + std::to_string(o.output_len));
  for (int64_t n : o.concurrency) {
    if (n < 1) return invalid("--max-concurrency: wanted 1 or more, found " + std::to_string(n));
    o.model.max_num_seqs = std::max(o.model.max_num_seqs, n);
  }
  o.model.max_num_batched_tokens = std::max(o.model.max_num_batched_tokens, o.model.max_num_seqs);
  if (o.model.max_model_len == 0) o.model.max_model_len = o.input_len + o.output_len;
  auto session = open_session(o.model);
  if (!session.ok()) return session.status();
  Session& s = session.value();
  const auto read = bench::read_bytes_per_us(*s.device);
  if (!read.ok()) return read.status();
  BenchReport report{.model = s.directory, .device = text(s.device->info()), .rows = {}};
  report.weight_bytes = s.model->weight_bytes();
  report.active_bytes = s.model->active_bytes();
  report.load_seconds = s.load_seconds;
  report.read_bytes_per_us = read.value();
  for (int64_t n : o.concurrency) {
    auto row = measure(s, n, o);
    if (!row.ok()) return row.status();
    if (n == 1 && row.value().step_ms > 0)
      row.value().share_of_reading =
          static_cast<double>(report.active_bytes) / report.read_bytes_per_us / (1e3 * row.value().step_ms);
    report.rows.push_back(row.value());
  }
  return report;
}

}  // namespace sluice::apps
