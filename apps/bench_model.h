// How fast a model answers on this machine, compared with reading its weights.
#pragma once
#include <vector>

#include "apps/session.h"

namespace sluice::apps {

struct BenchOptions {
  ModelFlags model;
  int64_t input_len = 128, output_len = 64;   // random tokens: speed does not depend on them
  std::vector<int64_t> concurrency = {1, 4};  // sequences at once
};

struct BenchRow {
  int64_t sequences = 0;
  double first_token_ms = 0;  // from the first step to the last sequence's first token
  double prompt_tokens_per_s = 0;
  double step_ms = 0, step_ms_p10 = 0, step_ms_p90 = 0;  // of decode steps
  double output_tokens_per_s = 0;                        // sequences / median step
  // Of one sequence: tokens a second over (read bandwidth / active bytes), the rate of reading the active weights once a token.
  double share_of_reading = 0;
};

struct BenchReport {
  std::string model, device;
  int64_t weight_bytes = 0, active_bytes = 0;
  double load_seconds = 0, read_bytes_per_us = 0;
  std::vector<BenchRow> rows;
};

Result<BenchReport> bench_model(const BenchOptions& options);

}  // namespace sluice::apps
