// What a serving benchmark reports of its requests, by vLLM's definitions.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/api_client.h"

namespace sluice {

// Milliseconds; all 0 where nothing was measured.
struct Distribution {
  double mean = 0, median = 0, std = 0;
  std::vector<std::pair<double, double>> percentiles =
      {};  // percent and value, in the order that was asked for
};
// Percentiles between two values are interpolated linearly (numpy's default), std is that of the population.
Distribution distribution_of(std::vector<double> seconds, std::span<const double> percents);

// A request is good when it keeps every bound that is there. Milliseconds.
struct Goodput {
  std::optional<double> ttft, tpot, e2el;
  bool asked() const { return ttft || tpot || e2el; }
};
// "ttft:200", "tpot:50", "e2el:5000".
Result<Goodput> parse_goodput(std::span<const std::string> bounds);

struct ServingMetrics {
  int64_t completed = 0, failed = 0;
  int64_t input_tokens = 0, output_tokens = 0;  // of those that were completed
  double seconds = 0;                           // from the run's begin until the last answer
  double request_throughput = 0, request_goodput = 0, output_throughput = 0,
         total_throughput = 0;    // a second
  double peak_output_tokens = 0;  // pieces that arrived in the fullest second
  int64_t peak_concurrent = 0;    // requests that one second saw
  // By the name of vLLM's --percentile-metrics.
  Distribution ttft = {};
  Distribution tpot = {};  // of answers of two tokens and more: (latency - ttft) / (tokens - 1)
  Distribution itl = {};   // between all pieces of all answers
  Distribution e2el = {};  // latency
  Distribution queue_time = {}, e2el_with_queue = {};
};
ServingMetrics metrics_of(std::span<const RequestOutcome> outcomes, double seconds,
                          std::span<const double> percents, const Goodput& goodput);

// Seconds for each token after the first; 0 for an answer of one.
double tpot_of(const RequestOutcome& outcome);

}  // namespace sluice
