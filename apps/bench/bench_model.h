// Measures a model's speed on this machine and compares it with the roofline of its steps.
#pragma once
#include <string>
#include <vector>

#include "apps/common/commands.h"
#include "apps/common/model_floor.h"
#include "apps/common/session.h"

namespace sluice::apps {

struct BenchOptions {
  ModelFlags model;
  // Prompt lengths; prompts are random tokens, because speed does not depend on their values. On a GPU: the mean context of the timed
  // steps. Empty: 128 on the CPU, 1024 on a GPU.
  std::vector<int64_t> input_len;
  // Tokens per sequence, on the CPU; a GPU run generates as many tokens as its timing needs.
  int64_t output_len = 64;
  // Concurrent sequences; empty: 1,4 on the CPU, 1,8,32,64,128,256 on a GPU.
  std::vector<int64_t> concurrency;
  std::vector<int64_t> prefill_len;  // prompts timed alone; empty: none on the CPU, 4096,8192 on a GPU
  std::string csv, csv_version = SLUICE_VERSION;  // output file for the rows, and their version
};

struct BenchRow {
  std::string op = {};    // decode: steps; prefill: one prompt
  std::string pace = {};  // on a GPU: burst, sustained; empty on the CPU
  int64_t sequences = 0, context = 0;
  double first_token_ms = 0;  // decode: from the first step to the last sequence's first token
  double prompt_tokens_per_s = 0;
  double step_ms = 0, step_ms_p10 = 0, step_ms_p90 = 0;  // prefill: the whole prompt
  double tokens_per_s = 0;                               // computed from the median
  double tokens_per_sequence = 1;  // tokens of a sequence per step; above 1 with speculative decoding
  // Distinct experts that a layer's tokens choose, averaged over all layers of some steps.
  double experts = 0;
  Floor floor = {};
  double share_of_floor = 0;
};

struct BenchReport {
  std::string model, device;
  int64_t weight_bytes = 0, active_bytes = 0;
  int64_t experts = 0;  // per layer
  double load_seconds = 0, read_bytes_per_us = 0;
  // Added to the rows' notes: " e4m3 cache"; empty: the cache has the activations' type.
  std::string cache_note = {};
  std::string routing_note = {};  // " zipf"; empty: --routing uniform, or the checkpoint's own routers
  std::vector<BenchRow> rows;
};

Result<BenchReport> bench_model(const BenchOptions& options);

std::string bench_json(const BenchReport& report);
// The command: runs bench_model() and prints the report.
int bench_command(const BenchOptions& options, Format format);

}  // namespace sluice::apps
