// Metrics of a serving benchmark, by vLLM's definitions.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/api_client.h"

namespace sluice {

// In milliseconds; all 0 if nothing was measured.
struct Distribution {
  double mean = 0, median = 0, std = 0;
  // Percent and value, in the requested order.
  std::vector<std::pair<double, double>> percentiles = {};
};
// Percentiles are interpolated linearly (numpy's default). `std` is the population's standard deviation.
Distribution distribution_of(std::vector<double> seconds, std::span<const double> percents);

// Limits in milliseconds. A request is good if it meets every limit that is set.
struct Goodput {
  std::optional<double> ttft, tpot, e2el;
  bool is_set() const { return ttft || tpot || e2el; }
};
// Parses bounds such as "ttft:200", "tpot:50" and "e2el:5000". The messages of errors do not name the option.
Result<Goodput> parse_goodput(std::span<const std::string> bounds);

struct ServingMetrics {
  int64_t completed = 0, failed = 0;
  int64_t input_tokens = 0, output_tokens = 0;  // tokens of completed requests
  double seconds = 0;                           // from the start of the run to the last answer
  // Requests or tokens per second.
  double request_throughput = 0, request_goodput = 0, output_throughput = 0, total_throughput = 0;
  double peak_output_tokens = 0;  // maximum number of pieces that arrived in one second
  int64_t peak_concurrent = 0;    // maximum number of requests that ran in one second
  // The names are the values of vLLM's option percentile-metrics.
  Distribution ttft = {};
  Distribution tpot = {};  // for answers with at least two tokens: (latency - ttft) / (tokens - 1)
  Distribution itl = {};   // times between successive pieces, over all answers
  Distribution e2el = {};  // RequestOutcome::latency
  Distribution queue_time = {}, e2el_with_queue = {};
};
ServingMetrics metrics_of(std::span<const RequestOutcome> outcomes, double seconds,
                          std::span<const double> percents, const Goodput& goodput);

// Seconds per token after the first; 0 for an answer with one token.
double tpot_of(const RequestOutcome& outcome);

}  // namespace sluice
