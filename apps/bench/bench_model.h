// How fast a model answers on this machine, compared with what its steps must read and multiply.
#pragma once
#include <string>
#include <vector>

#include "apps/common/commands.h"
#include "apps/common/model_floor.h"
#include "apps/common/session.h"

namespace sluice::apps {

struct BenchOptions {
  ModelFlags model;
  // Tokens before an answer, random ones: speed does not depend on them. On a GPU the mean context of the steps that are timed.
  // Empty: 128 on the CPU, 1024 on a GPU.
  std::vector<int64_t> input_len;
  int64_t output_len = 64;           // of each sequence, on the CPU; on a GPU as many as the paces take
  std::vector<int64_t> concurrency;  // sequences at once; empty: 1,4 on the CPU, 1,8,32,64,128,256 on a GPU
  std::vector<int64_t> prefill_len;  // prompts of their own; empty: none on the CPU, 4096,8192 on a GPU
  std::string csv, csv_version = SLUICE_VERSION;  // a file that gets the rows, and the version that they name
};

struct BenchRow {
  std::string op = {};    // decode: steps; prefill: one prompt
  std::string pace = {};  // of a GPU: burst, sustained; empty on the CPU
  int64_t sequences = 0, context = 0;
  double first_token_ms = 0;  // of decode: from the first step to the last sequence's first token
  double prompt_tokens_per_s = 0;
  double step_ms = 0, step_ms_p10 = 0, step_ms_p90 = 0;  // of a prefill: the whole prompt
  double tokens_per_s = 0;                               // by the median
  double tokens_per_sequence = 1;  // that a step gives, above 1 with speculative decoding
  double experts = 0;  // different ones that a layer's tokens chose, the mean of all layers of some steps
  Floor floor = {};
  double share_of_floor = 0;
};

struct BenchReport {
  std::string model, device;
  int64_t weight_bytes = 0, active_bytes = 0;
  int64_t experts = 0;  // of a layer
  double load_seconds = 0, read_bytes_per_us = 0;
  std::string cache_note =
      {};  // " e4m3 cache" in the rows' notes; empty: caches are of the activations' type
  std::string routing_note = {};  // " zipf"; empty: --routing uniform, or as the checkpoint's routers choose
  std::vector<BenchRow> rows;
};

Result<BenchReport> bench_model(const BenchOptions& options);

std::string bench_json(const BenchReport& report);
// As a command: prints it.
int bench_command(const BenchOptions& options, Format format);

}  // namespace sluice::apps
