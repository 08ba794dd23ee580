// A serving benchmark as people and programs read it: vLLM's block of text and its JSON, and a figure over the load.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "client/serving_metrics.h"

namespace sluice {

// What the caller says of a run, as it stands in the result.
struct Metadata {
  std::string key, value;
};
// kInvalidArgument: what is no KEY=VALUE.
Result<std::vector<Metadata>> parse_metadata(std::span<const std::string> words);

// One load and what came of it.
struct ServingRun {
  std::string date;  // "20260102-030405"
  ApiBackend backend = ApiBackend::kOpenai;
  std::string model, tokenizer = {};
  int64_t prompts = 0;
  double request_rate = 0;  // 0: no bound
  double burstiness = 1;
  int64_t max_concurrency = 0;  // 0: no bound
  Goodput goodput = {};
  // "ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue": what is reported as a distribution.
  std::vector<std::string> metrics = {"ttft", "tpot", "itl"};
  ServingMetrics measured = {};
  std::vector<RequestOutcome> outcomes = {};
  std::vector<Metadata> metadata = {};
};
// kInvalidArgument names a key of the metadata that the result of such a run has already, or that comes twice.
Status check_metadata(const ServingRun& run);
// kInvalidArgument names the metric that nobody knows.
Status check_metric(const std::string& name);

// The block "Serving Benchmark Result" as vLLM 0.32 prints it: its lines, widths and order.
std::string serving_block(const ServingRun& run);

enum class Detail : uint8_t { kTotals, kEachRequest };
// One run as an object with vLLM's keys, several as an array of these.
std::string serving_json(const std::vector<ServingRun>& runs, Detail detail);

// TTFT, TPOT and ITL over --max-concurrency: the median, and a band from p10 to p90. Runs without a bound are not drawn.
Result<std::string> serving_svg(const std::vector<ServingRun>& runs);

}  // namespace sluice
