#include "client/serving_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "base/printable.h"
#include "report/figure.h"

namespace sluice {
namespace {

constexpr size_t kWidth = 50;

struct Metric {
  std::string_view key, name, header;
  Distribution ServingMetrics::*distribution;
};
// The metrics in the order of the report.
constexpr Metric kMetrics[] = {
    {"ttft", "TTFT", "Time to First Token", &ServingMetrics::ttft},
    {"tpot", "TPOT", "Time per Output Token (excl. 1st token)", &ServingMetrics::tpot},
    {"itl", "ITL", "Inter-token Latency", &ServingMetrics::itl},
    {"e2el", "E2EL", "End-to-end Latency", &ServingMetrics::e2el},
    {"client_queue_time", "Client Queue Time", "Client-side Queueing", &ServingMetrics::queue_time},
    {"e2el_including_client_queue", "E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency",
     &ServingMetrics::e2el_with_queue},
};

bool reported(const ServingRun& run, const Metric& m) {
  if (std::find(run.metrics.begin(), run.metrics.end(), m.key) == run.metrics.end()) return false;
  if (m.key == "client_queue_time") return run.max_concurrency > 0;
  if (m.key == "e2el_including_client_queue") return run.max_concurrency > 0 && run.request_rate > 0;
  return true;
}

std::string line(const std::string& name, const std::string& value) {
  char out[160];
  std::snprintf(out, sizeof out, "%-40s %-10s\n", name.c_str(), value.c_str());
  return out;
}
std::string line(const std::string& name, int64_t value) { return line(name, std::to_string(value)); }
std::string line(const std::string& name, double value) {
  char out[64];
  std::snprintf(out, sizeof out, "%.2f", value);
  return line(name, std::string(out));
}

std::string rule(std::string_view words, char fill) {
  const size_t blank = kWidth - words.size(), left = blank / 2;
  return std::string(left, fill) + std::string(words) + std::string(blank - left, fill) + "\n";
}

std::string ms(std::string_view of, std::string_view name) {
  return std::string(of) + " " + std::string(name) + " (ms):";
}

std::string drafts_block(const DraftCounters& d) {
  constexpr double kPercent = 100;
  std::string out = rule("Speculative Decoding", '-');
  out += line("Acceptance rate (%):", kPercent * d.acceptance_rate());
  out += line("Acceptance length:", d.acceptance_length());
  out += line("Drafts:", d.drafts);
  out += line("Draft tokens:", d.draft_tokens);
  out += line("Accepted tokens:", d.accepted);
  const std::vector<double> rates = d.acceptance_by_position();
  if (!rates.empty()) out += "Per-position acceptance (%):\n";
  for (size_t i = 0; i < rates.size(); ++i)
    out += line("  Position " + std::to_string(i) + ":", kPercent * rates[i]);
  return out;
}

// As in vLLM, the overall acceptance rate is in percent, and the rates by position are fractions.
OrderedJson drafts_json(const DraftCounters& d) {
  return {{"spec_decode_acceptance_rate", 100 * d.acceptance_rate()},
          {"spec_decode_acceptance_length", d.acceptance_length()},
          {"spec_decode_num_drafts", d.drafts},
          {"spec_decode_draft_tokens", d.draft_tokens},
          {"spec_decode_accepted_tokens", d.accepted},
          {"spec_decode_per_position_acceptance_rates", d.acceptance_by_position()}};
}

OrderedJson each_request(const ServingRun& run) {
  OrderedJson out = OrderedJson::object();
  for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times",
                          "queue_times", "generated_texts", "errors"})
    out[key] = OrderedJson::array();
  for (const RequestOutcome& o : run.outcomes) {
    out["input_lens"].push_back(o.prompt_tokens);
    out["output_lens"].push_back(o.ok() ? o.output_tokens : 0);
    out["ttfts"].push_back(o.ttft);
    out["itls"].push_back(o.itl);
    out["latencies"].push_back(o.latency);
    out["start_times"].push_back(o.start);
    out["queue_times"].push_back(o.queued);
    out["generated_texts"].push_back(o.text);
    out["errors"].push_back(o.error);
  }
  return out;
}

OrderedJson run_json(const ServingRun& run, Detail detail) {
  const ServingMetrics& m = run.measured;
  OrderedJson out = {
      {"date", run.date},
      {"endpoint_type", text(run.backend)},
      {"backend", text(run.backend)},
      {"label", nullptr},
      {"model_id", run.model},
      {"tokenizer_id", run.tokenizer.empty() ? OrderedJson(nullptr) : OrderedJson(run.tokenizer)},
      {"num_prompts", run.prompts},
      {"request_rate", run.request_rate > 0 ? OrderedJson(run.request_rate) : OrderedJson("inf")},
      {"burstiness", run.burstiness},
      {"max_concurrency", run.max_concurrency > 0 ? OrderedJson(run.max_concurrency) : OrderedJson(nullptr)},
      {"duration", m.seconds},
      {"completed", m.completed},
      {"failed", m.failed},
      {"total_input_tokens", m.input_tokens},
      {"total_output_tokens", m.output_tokens},
      {"request_throughput", m.request_throughput},
      {"request_goodput", run.goodput.is_set() ? OrderedJson(m.request_goodput) : OrderedJson(nullptr)},
      {"output_throughput", m.output_throughput},
      {"total_token_throughput", m.total_throughput},
      {"max_output_tokens_per_s", m.peak_output_tokens},
      {"max_concurrent_requests", m.peak_concurrent}};
  for (const Metric& metric : kMetrics) {
    if (!reported(run, metric)) continue;
    const Distribution& d = m.*metric.distribution;
    const std::string key(metric.key);
    out["mean_" + key + "_ms"] = d.mean;
    out["median_" + key + "_ms"] = d.median;
    out["std_" + key + "_ms"] = d.std;
    for (const auto& [percent, value] : d.percentiles)
      out["p" + number_text(percent) + "_" + key + "_ms"] = value;
  }
  if (run.drafts) out.update(drafts_json(*run.drafts));
  if (detail == Detail::kEachRequest) out.update(each_request(run));
  return out;
}

}  // namespace

Result<std::vector<Metadata>> parse_metadata(std::span<const std::string> words) {
  std::vector<Metadata> out;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) return invalid("wanted KEY=VALUE, found '" + word + "'");
    out.push_back({word.substr(0, equals), word.substr(equals + 1)});
  }
  return out;
}

Status check_metadata(const ServingRun& run) {
  ServingRun full = run;  // has every key that a result may have
  full.drafts.emplace();
  OrderedJson keys = run_json(full, Detail::kEachRequest);
  for (const Metadata& m : run.metadata) {
    if (keys.contains(m.key))
      return invalid("wanted unique keys that the result does not have, found '" + m.key + "'");
    keys[m.key] = m.value;
  }
  return {};
}

Status check_metric(const std::string& name) {
  std::string known;
  for (const Metric& m : kMetrics) {
    if (m.key == name) return {};
    known += (known.empty() ? "" : ", ") + std::string(m.key);
  }
  return invalid("wanted any of " + known + ", found '" + name + "'");
}

std::string serving_block(const ServingRun& run) {
  const ServingMetrics& m = run.measured;
  std::string out = rule(" Serving Benchmark Result ", '=');
  out += line("Successful requests:", m.completed);
  out += line("Failed requests:", m.failed);
  if (run.max_concurrency > 0) out += line("Maximum request concurrency:", run.max_concurrency);
  if (run.request_rate > 0) out += line("Request rate configured (RPS):", run.request_rate);
  out += line("Benchmark duration (s):", m.seconds);
  out += line("Total input tokens:", m.input_tokens);
  out += line("Total generated tokens:", m.output_tokens);
  out += line("Request throughput (req/s):", m.request_throughput);
  if (run.goodput.is_set()) out += line("Request goodput (req/s):", m.request_goodput);
  out += line("Output token throughput (tok/s):", m.output_throughput);
  out += line("Peak output token throughput (tok/s):", m.peak_output_tokens);
  out += line("Peak concurrent requests:", static_cast<double>(m.peak_concurrent));
  out += line("Total token throughput (tok/s):", m.total_throughput);
  for (const Metric& metric : kMetrics) {
    if (!reported(run, metric)) continue;
    const Distribution& d = m.*metric.distribution;
    out += rule(metric.header, '-');
    out += line(ms("Mean", metric.name), d.mean);
    out += line(ms("Median", metric.name), d.median);
    for (const auto& [percent, value] : d.percentiles)
      out += line(ms("P" + number_text(percent), metric.name), value);
  }
  if (run.drafts) out += drafts_block(*run.drafts);
  return out + std::string(kWidth, '=') + "\n";
}

std::string serving_json(const std::vector<ServingRun>& runs, Detail detail) {
  OrderedJson all = OrderedJson::array();
  for (const ServingRun& run : runs) {
    all.push_back(run_json(run, detail));
    for (const Metadata& m : run.metadata) all.back()[m.key] = m.value;
  }
  const OrderedJson& out = runs.size() == 1 ? all.front() : all;
  return out.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Result<std::string> serving_svg(const std::vector<ServingRun>& runs) {
  constexpr double kBand[] = {10, 90};
  std::map<int64_t, ServingMetrics> loads;
  for (const ServingRun& run : runs)
    if (run.max_concurrency > 0 && run.measured.completed > 0)
      loads[run.max_concurrency] = metrics_of(run.outcomes, run.measured.seconds, kBand, {});
  if (loads.empty())
    return invalid("wanted a run with a concurrency limit and completed requests, found none");
  bench::Figure figure{.op = std::string(bench::kServingOp), .panels = {}, .axes = bench::kServingAxes};
  for (const Metric& metric : kMetrics) {
    if (metric.key != "ttft" && metric.key != "tpot" && metric.key != "itl") continue;
    bench::Panel panel{figure.op, std::string(metric.header), "", {}, {}};
    bench::Series series{.impl = runs.front().model, .ours = true};
    for (const auto& [concurrency, measured] : loads) {
      const Distribution& d = measured.*metric.distribution;
      series.at[concurrency] = {1e3 * d.median, 1e3 * d.percentiles[0].second, 1e3 * d.percentiles[1].second};
    }
    panel.series.push_back(std::move(series));
    figure.panels.push_back(std::move(panel));
  }
  const std::string title = runs.front().model + " under load";
  const bench::Size size = bench::size_of(figure);
  const auto canvas = bench::svg_canvas(size.width, size.height, title);
  bench::draw(figure, {.title = title}, *canvas);
  return canvas->finish();
}

}  // namespace sluice
