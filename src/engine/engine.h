// Serves concurrent requests with one decoder and a paged KV cache: prefills prompts in chunks, then decodes
// one token per request and step, or several with speculative decoding.
#pragma once
#include <compare>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/draft_runner.h"
#include "engine/expert_counter.h"
#include "engine/other_ranks.h"
#include "engine/scheduler.h"
#include "nn/decoder.h"

namespace sluice {

constexpr int64_t kStepTokensMax = 16384;  // the largest token count that every operation of a layer accepts
// By default, decode steps of at most this many sequences are captured in graphs and replayed. On an H200,
// replay made a step of gpt-oss-20b with 256 sequences 1.5% faster than launching it kernel by kernel.
// Capturing takes some milliseconds per sequence count, and replay gains less in larger steps, so the limit
// is no larger.
constexpr int64_t kRecordedSequences = 256;
// upper bound of captured step shapes; steps of further shapes are not captured
constexpr size_t kRecordingsMax = 1024;
constexpr int64_t kVerifiedRows =
    1024;  // upper bound of the logit rows of a step that verifies drafts; max_num_seqs if that is larger

// Tensor parallelism: another device of the group, with rank 1, 2, ...; the engine's own device is rank 0.
struct EngineRank {
  Device* device = nullptr;
  const DecoderConfig* config = nullptr;  // this rank's slice (nn/decoder_slice.h)
  const NamedWeights* weights = nullptr;
};

struct EngineOptions {
  int64_t max_model_len = 4096;          // tokens of one sequence, prompt and generated
  int64_t max_num_seqs = 8;              // sequences per step, at most kStepTokensMax
  int64_t max_num_batched_tokens = 512;  // tokens per step, at most kStepTokensMax
  int64_t mixed_prefill_tokens = 0;      // see SchedulerOptions
  int64_t page_size = 16;                // tokens per page
  // Bytes of the KV cache; 0: enough for max_num_seqs sequences of max_model_len tokens. At least one such
  // sequence must fit.
  int64_t kv_cache_bytes = 0;
  // Upper bound of the process's share of device memory, including weights; the cache shrinks to fit. 0: the
  // cache does not shrink, and make() fails if the cache does not fit into free memory.
  double memory_utilization = 0;
  // Reuses the cached pages of earlier requests that began with the same tokens. After a hit, only the rest of the
  // prompt is computed, so its chunks differ from the chunks without a hit. Unless policy.batch_invariant is set,
  // other kernels may compute those chunks, and the last bits of the logits may differ.
  bool prefix_cache = true;
  Policy policy = {};
  MoeSite experts = {};
  // 1 (asynchronous scheduling): a step is enqueued before the host has the samples of the step before it,
  // and reads those samples from device memory. 0: the host reads the samples first. Default: 1 on a
  // device with its own memory, otherwise 0. While any request has penalties, biases or a filter, steps run
  // as if this were 0.
  std::optional<int64_t> steps_ahead = {};
  // A decode step of at most this many sequences is captured in a graph when its shape first occurs, and
  // replayed from then on. 0: no graphs. Default: kRecordedSequences on a device with its own
  // memory, otherwise 0.
  std::optional<int64_t> recorded_sequences = {};
  // Speculative decoding. With policy.batch_invariant, drafts do not change answers at all; without it, an
  // answer can differ only because kernels for different token counts round differently.
  SpeculationOptions speculation = {};
  std::optional<DraftHead> draft_head = {};  // set if has_draft_layer(speculation.method)
  // Counts the tokens per expert and layer; costs one launch per step.
  bool count_experts = false;
  // Tensor parallelism: `group` has all devices, with the engine's device as rank 0; `other_ranks` lists
  // ranks 1, 2, ... All ranks compute the same bits and sample the same tokens; the engine returns the tokens
  // of rank 0. The draft layer runs on rank 0 alone. Not supported with offloaded experts.
  Group* group = nullptr;
  std::vector<EngineRank> other_ranks = {};
  // Keeps the experts that the last step's tokens chose, for chosen_experts(). Costs no launch.
  bool keep_chosen_experts = false;
};

struct EngineMemory {
  int64_t kv_cache_bytes = 0, workspace_bytes = 0, pages = 0;
  // Tokens that fit into the cache, in at most max_num_seqs sequences of max_model_len tokens.
  int64_t tokens = 0;
};

class LogitAdjustments;
class LogitMasks;
class StepStaging;
enum class TakeIds : uint8_t;
struct StepTensors;

// The operations of a step outside the decoder.
struct StepPlans {
  std::optional<PlanTable<TakeTokens>> take;  // set if steps_ahead > 0
  std::optional<PlanTable<Sample>> sample;
  std::optional<PlanTable<TopLogprobs>> top;
  std::unique_ptr<LogitAdjustments> adjustments;
  std::unique_ptr<LogitMasks> masks;
  std::unique_ptr<ExpertCounter> experts;  // set with count_experts or keep_chosen_experts
  std::unique_ptr<DraftRunner> drafts;     // set with EngineOptions::draft_head
  size_t workspace_bytes() const;
};

class Engine {
 public:
  // Plans the steps and allocates their memory and the cache. The weights must outlive the engine.
  // kInvalidArgument: an option is out of range or contradicts another option. kOutOfMemory gives the bytes
  // needed and the bytes free.
  static Result<std::unique_ptr<Engine>> make(Device& device, const DecoderConfig& config,
                                              const NamedWeights& weights, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Returns the request's id. kInvalidArgument as in Scheduler::add, and for a token outside the vocabulary
  // or a sampling parameter out of range.
  Result<int64_t> add(Request request);
  void cancel(int64_t request) { scheduler_.cancel(request); }
  bool idle() const { return scheduler_.idle(); }
  // Enqueues as many steps as the options allow, waits for the oldest, and returns its tokens; a request's
  // tokens are in order. Without speculation, there is at most one token per request.
  //
  // Worker threads compute the masks of filters. A step waits at most kMaskWait for its masks, then continues
  // without the sequences whose mask is late. If only such sequences are left, step() waits at most kMaskWait
  // for one of their masks and returns no token.
  //
  // kDevice names the step and the request whose logits are not finite: the weights or a kernel are broken,
  // so no token would be meaningful. Every error discards the steps in flight and all cached keys and values;
  // the next call recomputes every request from its tokens.
  Result<std::vector<GeneratedToken>> step();
  // Returns the requests that ended since the last call because their filter failed or allowed no token.
  std::vector<FailedRequest> take_failed() { return std::exchange(failed_, {}); }

  // Returns the logits of `tokens` at the given positions (ascending), f32 [positions, vocab]. The tokens are
  // prefilled like one request, and a chunk ends at each position. The prefix cache is neither read nor
  // filled, but pages may be evicted from it. The engine must be idle.
  Result<std::vector<float>> logits(const std::vector<int32_t>& tokens,
                                    const std::vector<int64_t>& positions);

  int64_t max_model_len() const { return bounds_.positions; }
  const Decoder& decoder() const { return *decoder_; }
  const Scheduler& scheduler() const { return scheduler_; }
  const EngineMemory& memory() const { return memory_; }
  const SpeculationOptions& speculation() const { return scheduler_.speculation(); }
  DraftCounts draft_counts() const;
  int64_t steps() const { return steps_; }  // steps enqueued so far
  MaskCounts mask_counts() const { return {.steps_sat_out = steps_sat_out_, .times = mask_workers_.times()}; }
  int64_t recordings() const;  // graphs captured so far
  // Kernels of all steps enqueued so far, including replayed steps.
  const KernelRuns& kernel_runs() const { return kernel_runs_; }
  // With count_experts, the next step also copies the counts to the host, and expert_counts() returns them
  // when the step has finished. If the engine is idle, waits for the work in flight and copies the counts
  // now. Does nothing without count_experts.
  Status ask_expert_counts();
  // The counts of the last copy, initially zeros; null without count_experts. A token is counted each
  // time it is computed, including tokens that are recomputed after a preemption or an error, and
  // tokens past a stop token.
  std::shared_ptr<const ExpertCounts> expert_counts() const {
    return counts_experts_ ? plans_.experts->counts() : nullptr;
  }
  // With keep_chosen_experts or count_experts: waits for all enqueued work, and returns the experts that the
  // tokens of the last enqueued step chose (no tokens before the first step). Empty without these options.
  Result<ChosenExperts> chosen_experts();

 private:
  struct InFlight {
    std::vector<Chunk> chunks;
    int64_t number = 0, rows = 0;  // number of the step, from 1; rows that it samples
    // every row samples the token with the largest logit, and nothing else reads the logits
    bool greedy = false;
    size_t block = 0;              // index of its staging block
    StepTables draft_tables = {};  // tables of the group of layers (CacheLayout) with the draft layer
  };
  struct RecordedStep {
    std::unique_ptr<Recording> recording;
    KernelRuns runs;  // the kernels of one replay
  };
  struct RecordedSteps {
    RecordedStep greedy, sampled;
  };
  // Steps of the same shape have the same launches, so they can share a captured graph.
  struct StepShape {
    int64_t sequences, tokens;
    auto operator<=>(const StepShape&) const = default;
  };
  Engine(Device& device, const NamedWeights& weights, std::unique_ptr<Decoder> decoder, StepPlans plans,
         const SchedulerOptions& options);
  // make() for one rank. schedules: true for rank 0, which also runs the draft layer.
  static Result<std::unique_ptr<Engine>> make_rank(Device& device, const DecoderConfig& config,
                                                   const NamedWeights& weights, const EngineOptions& options,
                                                   bool schedules);
  Status take_memory();
  Status write_rope_table();
  Status add_ranks(const EngineOptions& options);
  // engine_steps.cc
  Status begin_steps();
  Status begin(std::vector<Chunk> chunks);
  Status enqueue_on_all_ranks(InFlight* step);
  Status fill_for_all_ranks(const InFlight& step);
  bool is_recorded(const InFlight& step) const;
  // kMake: captures the step's graph unless it has been captured already, and runs nothing.
  enum class Recordings : uint8_t { kMake, kMakeAndRun };
  Status enqueue(InFlight* step, Recordings recordings = Recordings::kMakeAndRun);
  Status launch_all(InFlight* step, const StepTensors& tensors, TakeIds ids, KernelRuns* runs);
  Status forward_and_score(const StepTensors& tensors, KernelRuns* runs);
  bool logits_are_readable() const { return device_.shares_host_memory() && steps_ahead_ == 0; }
  Status sample(InFlight* step, const StepTensors& tensors, KernelRuns* runs);
  Result<std::vector<GeneratedToken>> finish_oldest();
  void draft(const InFlight& step);
  Status check_logits(const InFlight& step, const std::vector<GeneratedToken>& sampled,
                      const std::vector<TokenScore>& scores) const;
  void drop_ended_steps();
  void take_back_all(const Status& why);
  void end_all_work(const Status& why);
  Result<std::vector<float>> logits_in_pages(const std::shared_ptr<Sequence>& sequence,
                                             const std::vector<int64_t>& positions);
  // engine_masks.cc
  void begin_masks();
  void await_masks(InFlight* step);
  void await_any_mask();
  void count_sitting_out();

  Workspace workspace() const {
    return {static_cast<std::byte*>(workspace_), static_cast<size_t>(memory_.workspace_bytes)};
  }

  Device& device_;
  const NamedWeights& weights_;
  std::unique_ptr<Decoder> decoder_;
  StepBounds bounds_;
  Scheduler scheduler_;
  StepPlans plans_;
  bool counts_experts_ = false;
  int64_t chosen_tokens_ = 0;  // tokens of the last enqueued step
  std::unique_ptr<StepStaging> staging_;
  DecoderHeld held_;  // the decoder's weights and caches
  void *cache_ = nullptr, *workspace_ = nullptr, *logits_ = nullptr, *rope_ = nullptr;
  EngineMemory memory_;
  size_t logits_bytes_ = 0;
  size_t steps_ahead_ = 0;
  int64_t recorded_sequences_ = 0;
  bool batch_invariant_ = false;
  std::map<StepShape, RecordedSteps> recordings_;
  KernelRuns kernel_runs_;
  std::deque<InFlight> in_flight_;  // oldest first
  int64_t steps_ = 0, steps_sat_out_ = 0;
  Status draft_status_;  // status of the draft layer after the previous step
  std::vector<FailedRequest> failed_;
  bool schedules_ = true;              // false: the engine of a rank above 0
  std::unique_ptr<OtherRanks> ranks_;  // set with other ranks
  // declared last: its destructor, which runs first, waits for running filters
  MaskWorkers mask_workers_;
};

}  // namespace sluice
