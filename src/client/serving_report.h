// Reports of a serving benchmark: vLLM's text block, vLLM's JSON, and a chart over the concurrency limit. Error messages do not name the
// option that was checked; the caller adds the name.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/draft_metrics.h"
#include "client/serving_metrics.h"

namespace sluice {

// A user-defined field of the result.
struct Metadata {
  std::string key, value;
};
// kInvalidArgument: an entry is not KEY=VALUE.
Result<std::vector<Metadata>> parse_metadata(std::span<const std::string> words);

// One benchmark run with its results.
struct ServingRun {
  std::string date;  // "20260102-030405"
  ApiBackend backend = ApiBackend::kOpenai;
  std::string model, tokenizer = {};
  int64_t prompts = 0;
  double request_rate = 0;  // 0: no limit
  double burstiness = 1;
  int64_t max_concurrency = 0;  // 0: no limit
  Goodput goodput = {};
  // The metrics to report as distributions: "ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue".
  std::vector<std::string> metrics = {"ttft", "tpot", "itl"};
  ServingMetrics measured = {};
  std::optional<DraftCounters> drafts = {};  // nullopt: the server made no drafts, or does not count them
  std::vector<RequestOutcome> outcomes = {};
  std::vector<Metadata> metadata = {};
};
// kInvalidArgument: a key of `run.metadata` is also a key of the JSON result, or appears twice.
Status check_metadata(const ServingRun& run);
// kInvalidArgument: the metric is unknown.
Status check_metric(const std::string& name);

// The block "Serving Benchmark Result" with the lines, widths and order of vLLM 0.32.
std::string serving_block(const ServingRun& run);

enum class Detail : uint8_t { kTotals, kEachRequest };
// One run gives an object with vLLM's keys, several runs an array of objects.
std::string serving_json(const std::vector<ServingRun>& runs, Detail detail);

// A chart of TTFT, TPOT and ITL over the concurrency limit, with the median and a band from p10 to p90. Runs without a limit are left out.
Result<std::string> serving_svg(const std::vector<ServingRun>& runs);

}  // namespace sluice
