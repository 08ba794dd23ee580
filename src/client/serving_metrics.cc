#include "client/serving_metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

namespace sluice {
namespace {

constexpr double kMs = 1000;

// `sorted` must not be empty.
double percentile(const std::vector<double>& sorted, double percent) {
  const double at = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - static_cast<double>(below));
}

bool keeps(double seconds, const std::optional<double>& bound_ms) {
  return !bound_ms || seconds * kMs <= *bound_ms;
}

// Finds the peaks over intervals of one second. The first interval begins when the earliest successful request was sent.
void find_peaks(std::span<const RequestOutcome> outcomes, ServingMetrics* m) {
  double first = INFINITY;
  for (const RequestOutcome& o : outcomes)
    if (o.ok()) first = std::min(first, o.start);
  std::map<int64_t, int64_t> pieces, running;
  const auto second = [&](double at) { return static_cast<int64_t>(at - first); };
  for (const RequestOutcome& o : outcomes) {
    if (!o.ok()) continue;
    double at = o.start + o.ttft;
    ++pieces[second(at)];
    for (const double gap : o.itl) ++pieces[second(at += gap)];
    for (int64_t s = second(o.start); s <= second(o.start + o.latency); ++s) ++running[s];
  }
  for (const auto& [s, count] : pieces)
    m->peak_output_tokens = std::max(m->peak_output_tokens, static_cast<double>(count));
  for (const auto& [s, count] : running) m->peak_concurrent = std::max(m->peak_concurrent, count);
}

}  // namespace

Distribution distribution_of(std::vector<double> seconds, std::span<const double> percents) {
  Distribution out;
  if (seconds.empty()) seconds.push_back(0);
  std::sort(seconds.begin(), seconds.end());
  const auto count = static_cast<double>(seconds.size());
  double sum = 0, squares = 0;
  for (const double s : seconds) sum += s;
  for (const double s : seconds) squares += (s - sum / count) * (s - sum / count);
  out.mean = kMs * sum / count;
  out.std = kMs * std::sqrt(squares / count);
  out.median = kMs * percentile(seconds, 50);
  for (const double p : percents) out.percentiles.emplace_back(p, kMs * percentile(seconds, p));
  return out;
}

Result<Goodput> parse_goodput(std::span<const std::string> bounds) {
  Goodput out;
  for (const std::string& bound : bounds) {
    const size_t colon = std::min(bound.find(':'), bound.size());
    const std::string name = bound.substr(0, colon), number = bound.substr(std::min(colon + 1, bound.size()));
    std::optional<double>* to = name == "ttft" ? &out.ttft : name == "tpot" ? &out.tpot : &out.e2el;
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    const bool known = name == "ttft" || name == "tpot" || name == "e2el";
    if (!known || error != std::errc() || end != number.data() + number.size() || !(value >= 0))
      return invalid("wanted ttft:MS, tpot:MS or e2el:MS, found '" + bound + "'");
    if (*to) return invalid("wanted each metric once, found '" + bound + "' after another " + name);
    *to = value;
  }
  return out;
}

double tpot_of(const RequestOutcome& o) {
  return o.output_tokens > 1 ? (o.latency - o.ttft) / static_cast<double>(o.output_tokens - 1) : 0;
}

ServingMetrics metrics_of(std::span<const RequestOutcome> outcomes, double seconds,
                          std::span<const double> percents, const Goodput& goodput) {
  ServingMetrics m{.seconds = seconds};
  std::vector<double> ttft, tpot, itl, e2el, queue, with_queue;
  int64_t good = 0;
  for (const RequestOutcome& o : outcomes) {
    if (!o.ok()) {
      ++m.failed;
      continue;
    }
    ++m.completed;
    m.input_tokens += o.prompt_tokens;
    m.output_tokens += o.output_tokens;
    ttft.push_back(o.ttft);
    if (o.output_tokens > 1) tpot.push_back(tpot_of(o));
    itl.insert(itl.end(), o.itl.begin(), o.itl.end());
    e2el.push_back(o.latency);
    queue.push_back(o.queued);
    with_queue.push_back(o.latency + o.queued);
    good += keeps(o.ttft, goodput.ttft) && keeps(tpot_of(o), goodput.tpot) && keeps(o.latency, goodput.e2el);
  }
  const auto rate = [&](int64_t count) { return static_cast<double>(count) / seconds; };
  m.request_throughput = rate(m.completed);
  m.request_goodput = goodput.is_set() ? rate(good) : 0;
  m.output_throughput = rate(m.output_tokens);
  m.total_throughput = rate(m.input_tokens + m.output_tokens);
  m.ttft = distribution_of(std::move(ttft), percents);
  m.tpot = distribution_of(std::move(tpot), percents);
  m.itl = distribution_of(std::move(itl), percents);
  m.e2el = distribution_of(std::move(e2el), percents);
  m.queue_time = distribution_of(std::move(queue), percents);
  m.e2el_with_queue = distribution_of(std::move(with_queue), percents);
  find_peaks(outcomes, &m);
  return m;
}

}  // namespace sluice
