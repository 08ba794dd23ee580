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
  // On the CPU: prompt lengths. On a GPU: mean contexts of the timed steps. Prompts are random tokens, because the speed does not depend on
  // the text. Empty: 128 on the CPU, 1024 on a GPU.
  std::vector<int64_t> input_len;
  // Generated tokens per sequence on the CPU. On a GPU, sequences generate as many tokens as the timing needs.
  int64_t output_len = 64;
  // Concurrent sequences; empty: 1,4 on the CPU, 1,8,32,64,128,256 on a GPU.
  std::vector<int64_t> concurrency;
  std::vector<int64_t> prefill_len;  // prompts timed alone; empty: none on the CPU, 4096,8192 on a GPU
  // file to which the rows are written, and the version in these rows
  std::string csv, csv_version = SLUICE_VERSION;
};

struct BenchRow {
  std::string op = {};    // "decode" for decode steps, "prefill" for single prompts
  std::string pace = {};  // on a GPU "burst" or "sustained"; empty on the CPU
  int64_t sequences = 0, context = 0;
  // of decode: time from the first step until all sequences have their first token
  double first_token_ms = 0;
  double prompt_tokens_per_s = 0;
  // step_ms: the median. For prefill: of the whole prompt
  double step_ms = 0, step_ms_p10 = 0, step_ms_p90 = 0;
  double tokens_per_s = 0;         // at the median step time
  double tokens_per_sequence = 1;  // mean tokens per sequence and step; above 1 with speculative decoding
  // Number of distinct experts that the tokens of a step choose in a layer, averaged over layers and steps.
  double experts = 0;
  Floor floor = {};
  double share_of_floor = 0;
};

struct BenchReport {
  std::string model, device;
  int64_t weight_bytes = 0, active_bytes = 0;
  int64_t experts = 0;  // per layer
  double load_seconds = 0, read_bytes_per_us = 0;
  // Added to the notes of the rows, such as " e4m3 cache"; empty if the cache has the type of the activations.
  std::string cache_note = {};
  // such as " zipf"; empty with --routing uniform, or with the checkpoint's own routers
  std::string routing_note = {};
  std::vector<BenchRow> rows;
};

Result<BenchReport> bench_model(const BenchOptions& options);

std::string bench_json(const BenchReport& report);
// The command: runs bench_model() and prints the report.
int bench_command(const BenchOptions& options, Format format);

}  // namespace sluice::apps
