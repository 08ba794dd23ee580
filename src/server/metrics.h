// Counters of a server in Prometheus's format. The names are vLLM's; every counter is listed twice, with the prefixes `vllm:` and
// `sluice:`.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/engine_thread.h"

namespace sluice {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double value);
  const std::vector<double>& bounds() const { return bounds_; }
  // One count per bound, then one for the values above all bounds.
  const std::vector<int64_t>& counts() const { return counts_; }
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;  // ascending; a value is counted at the first bound that is >= the value
  std::vector<int64_t> counts_;
  double sum_ = 0;
};

struct ServeMetrics {
  ServeMetrics();
  int64_t prompt_tokens = 0, generation_tokens = 0;
  std::map<std::string, int64_t> finished;  // sequences by finish reason
  std::map<int, int64_t> answers;           // HTTP answers by status
  int64_t clients_lost = 0, log_lines_dropped = 0;
  Histogram first_token, between_tokens, per_output_token, whole, queue, prefill, decode;  // seconds
  Histogram prompt_lengths, generation_lengths, step_tokens;                               // tokens
};

// In Prometheus's text format 0.0.4.
std::string metrics_text(const ServeMetrics& metrics, const EngineLoad& load, int64_t connections,
                         const std::string& model);

}  // namespace sluice
