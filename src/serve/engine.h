// Several requests at once over one decoder: prompts in chunks, then a token a step for each, from a paged cache.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "nn/decoder.h"
#include "serve/scheduler.h"

namespace sluice {

constexpr int64_t kStepTokensMax = 16384;  // what every operation of a layer takes

struct EngineOptions {
  int64_t max_model_len = 4096;          // tokens of one sequence, prompt and answer
  int64_t max_num_seqs = 8;              // sequences of one step: at most kStepTokensMax
  int64_t max_num_batched_tokens = 512;  // tokens of one step: at most kStepTokensMax
  int64_t page_size = 16;                // tokens
  // Bytes of the cache; 0: enough for max_num_seqs sequences of max_model_len. At least one such sequence must fit.
  int64_t kv_cache_bytes = 0;
  Policy policy = {};
  MoeSite experts = {};
};

struct EngineMemory {
  int64_t kv_cache_bytes = 0, workspace_bytes = 0, pages = 0;
};

class StepStaging;

class Engine {
 public:
  // Plans for `config` and takes the memory that steps need. The weights must outlive the engine. kInvalidArgument: options
  // that contradict each other; kOutOfMemory: the bytes wanted and the bytes free.
  static Result<std::unique_ptr<Engine>> make(Device& device, const DecoderConfig& config,
                                              const DecoderWeights& weights, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // kInvalidArgument besides Scheduler::add's: a token outside the vocabulary, a sampling parameter outside its range.
  Result<int64_t> add(Request request);
  void cancel(int64_t request) { scheduler_.cancel(request); }
  bool idle() const { return scheduler_.idle(); }
  // Computes one step and waits for it. The tokens that it drew, at most one a request. kDevice names the step and the request whose
  // logits are no finite numbers: weights or a kernel are broken, and no token would mean anything.
  Result<std::vector<GeneratedToken>> step();

  // The logits of `tokens` at some of its positions (ascending), f32 [positions, vocab], computed as one request would be,
  // in chunks that end there. The engine must be idle.
  Result<std::vector<float>> logits(const std::vector<int32_t>& tokens,
                                    const std::vector<int64_t>& positions);

  int64_t max_model_len() const { return bounds_.positions; }
  const Decoder& decoder() const { return *decoder_; }
  const Scheduler& scheduler() const { return scheduler_; }
  const EngineMemory& memory() const { return memory_; }

 private:
  Engine(Device& device, const DecoderWeights& weights, const StepBounds& bounds);
  Status allocate(const RopeScaling& rope);
  Status compute(const std::vector<Chunk>& chunks);
  Result<std::vector<GeneratedToken>> sample(const std::vector<Chunk>& chunks);
  Status check_logits(const std::vector<Chunk>& chunks, const std::vector<GeneratedToken>& drawn) const;

  Device& device_;
  const DecoderWeights& weights_;
  StepBounds bounds_;
  Scheduler scheduler_;
  std::unique_ptr<Decoder> decoder_;
  std::optional<PlanTable<Sample>> sample_;
  std::unique_ptr<StepStaging> staging_;
  std::vector<KvCache> caches_;
  void *cache_ = nullptr, *workspace_ = nullptr, *logits_ = nullptr, *rope_ = nullptr;
  EngineMemory memory_;
  int64_t steps_ = 0;
};

}  // namespace sluice
