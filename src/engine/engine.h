// Serves concurrent requests with one decoder and a paged cache: prefills prompts in chunks, then decodes
// one token per step for each request.
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
// By default, decode steps of at most this many sequences are captured and replayed. Replaying 256 sequences
// of gpt-oss-20b takes 1.6% less time than launching (8.33 and 8.46 ms on an H200). Each sequence count costs
// some milliseconds when it is first captured, so a larger limit costs more captures and saves less per step.
constexpr int64_t kRecordedSequences = 256;
constexpr size_t kRecordingsMax = 1024;  // shapes of steps; others are launched kernel by kernel
constexpr int64_t kVerifiedRows =
    1024;  // logit rows of a step that verifies drafts, at most; more sequences have a row each

// Another device that computes the model together with the engine's own: rank 1, 2, ... of their group.
struct EngineRank {
  Device* device = nullptr;
  const DecoderConfig* config = nullptr;  // of its slice (nn/decoder_slice.h)
  const NamedWeights* weights = nullptr;
};

struct EngineOptions {
  int64_t max_model_len = 4096;          // tokens of one sequence, prompt and generated
  int64_t max_num_seqs = 8;              // sequences of one step: at most kStepTokensMax
  int64_t max_num_batched_tokens = 512;  // tokens of one step: at most kStepTokensMax
  int64_t mixed_prefill_tokens = 0;      // see SchedulerOptions
  int64_t page_size = 16;                // tokens
  // Bytes of the KV cache; 0: enough for max_num_seqs sequences of max_model_len. At least one such sequence must fit.
  int64_t kv_cache_bytes = 0;
  // Upper bound of the process's share of device memory, weights included; the cache shrinks to fit below
  // it. 0: only the free memory limits the cache, and a cache that does not fit is an error.
  double memory_utilization = 0;
  // Reuses cached pages of requests that begin with the same tokens. After a prefix cache hit only the
  // remaining tokens are computed, so their chunks differ from an uncached prompt's. Without
  // policy.batch_invariant other kernels may then run, and the last bits of an answer may depend on the hit.
  bool prefix_cache = true;
  Policy policy = {};
  MoeSite experts = {};
  // 1: a step is enqueued before the host has read the tokens that the previous step samples; those tokens
  // stay on the device as the next step's input. 0: the host reads them first. Default: 1 on a device with
  // its own memory, else 0. Steps run as with 0 while any request has penalties, biases or a filter.
  std::optional<int64_t> steps_ahead = {};
  // Decode steps (one token per sequence) of at most this many sequences are captured at the first step of
  // that size and replayed from then on. 0: every kernel is launched. Default: kRecordedSequences on a
  // device with its own memory, else 0.
  std::optional<int64_t> recorded_sequences = {};
  // Draft tokens that steps verify. Answers do not depend on drafts: to the bit under policy.batch_invariant, otherwise as far as
  // kernels for different token counts round alike.
  SpeculationOptions speculation = {};
  std::optional<DraftHead> draft_head = {};  // with has_draft_layer(speculation.method)
  // Counts the tokens that each expert of each layer gets; costs one launch per step.
  bool count_experts = false;
  // With tensor parallelism: the group of the engine's device, which is rank 0, and the other ranks in order. Answers and logits are
  // those of rank 0; every rank computes and samples them with the same bits. No drafts and no offloaded experts then.
  Group* group = nullptr;
  std::vector<EngineRank> other_ranks = {};
  // Keeps the experts that the tokens of the last step chose, for chosen_experts(). Costs no launch.
  bool keep_chosen_experts = false;
};

struct EngineMemory {
  int64_t kv_cache_bytes = 0, workspace_bytes = 0, pages = 0;
  // Tokens that fit into the cache, in sequences of max_model_len tokens, at most max_num_seqs sequences.
  int64_t tokens = 0;
};

class LogitAdjustments;
class LogitMasks;
class StepStaging;
enum class TakeIds : uint8_t;
struct StepTensors;

// What a step runs besides the decoder.
struct StepPlans {
  std::optional<PlanTable<TakeTokens>> take;  // set with steps ahead
  std::optional<PlanTable<Sample>> sample;
  std::optional<PlanTable<TopLogprobs>> top;
  std::unique_ptr<LogitAdjustments> adjustments;
  std::unique_ptr<LogitMasks> masks;
  std::unique_ptr<ExpertCounter> experts;  // set with count_experts or keep_chosen_experts
  std::unique_ptr<DraftRunner> drafts;     // set with a draft head
  size_t workspace_bytes() const;
};

class Engine {
 public:
  // Plans for `config` and allocates the memory of the steps. The weights must outlive the engine.
  // kInvalidArgument: an option is out of range or contradicts another; kOutOfMemory: gives the bytes
  // wanted and the bytes free.
  static Result<std::unique_ptr<Engine>> make(Device& device, const DecoderConfig& config,
                                              const NamedWeights& weights, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Returns the request's number. kInvalidArgument, in addition to the errors of Scheduler::add: a token
  // outside the vocabulary or a sampling parameter outside its range.
  Result<int64_t> add(Request request);
  void cancel(int64_t request) { scheduler_.cancel(request); }
  bool idle() const { return scheduler_.idle(); }
  // Enqueues as many steps as the options allow, waits for the oldest, and returns its sampled tokens in the order of each answer; at
  // most one per request without options.speculation.
  // Worker threads compute the masks of filters. A step waits at most kMaskWait for its masks and then
  // continues without the sequences whose mask is late. If only such sequences are left, step() waits that
  // long for one of their masks and returns no token.
  // kDevice names the step and the request whose logits are not finite: the weights or a kernel are broken,
  // so no token would be meaningful. After an error the steps in flight are discarded, and so are all
  // cached keys and values: the next call recomputes every request from its tokens.
  Result<std::vector<GeneratedToken>> step();
  // Returns the requests that have ended since the last call because their filter failed or allowed no token.
  std::vector<FailedRequest> take_failed() { return std::exchange(failed_, {}); }

  // Returns the logits of `tokens` at the given positions (ascending), f32 [positions, vocab], computed as
  // for a single request, with chunks that end at those positions. Neither reads nor fills the prefix
  // cache, but may evict pages from it. The engine must be idle.
  Result<std::vector<float>> logits(const std::vector<int32_t>& tokens,
                                    const std::vector<int64_t>& positions);

  int64_t max_model_len() const { return bounds_.positions; }
  const Decoder& decoder() const { return *decoder_; }
  const Scheduler& scheduler() const { return scheduler_; }
  const EngineMemory& memory() const { return memory_; }
  const SpeculationOptions& speculation() const { return scheduler_.speculation(); }
  DraftCounts draft_counts() const;
  int64_t steps() const { return steps_; }  // enqueued so far
  MaskCounts mask_counts() const { return {.steps_sat_out = steps_sat_out_, .times = mask_workers_.times()}; }
  int64_t recordings() const;  // steps captured so far
  // Kernels of all steps enqueued so far, replayed steps included.
  const KernelRuns& kernel_runs() const { return kernel_runs_; }
  // With count_experts: the next enqueued step also copies the counts to the host, where they are available
  // when the step has finished. An idle engine copies them at once, after the work in flight. Without
  // count_experts: does nothing.
  Status ask_expert_counts();
  // The counts copied last, initially zeros; null without count_experts. They count computed tokens: a token that
  // is recomputed after a preemption or an error counts again, and so does a token computed past a stop token.
  std::shared_ptr<const ExpertCounts> expert_counts() const {
    return counts_experts_ ? plans_.experts->counts() : nullptr;
  }
  // With keep_chosen_experts or count_experts: waits for all enqueued work and returns the experts chosen
  // by the tokens of the step enqueued last; no tokens before the first step. Empty without either option.
  Result<ChosenExperts> chosen_experts();

 private:
  struct InFlight {
    std::vector<Chunk> chunks;
    int64_t number = 0, rows = 0;  // of the step, counted from 1; rows that it samples
    bool greedy = false;  // every row samples its largest logit, and no other use is made of the logits
    size_t block = 0;     // index of its staging block
    StepTables draft_tables = {};  // of the draft head's group of layers
  };
  struct RecordedStep {
    std::unique_ptr<Recording> recording;
    KernelRuns runs;  // what one replay runs
  };
  struct RecordedSteps {
    RecordedStep greedy, sampled;
  };
  // Steps of one shape have the same launches.
  struct StepShape {
    int64_t sequences, tokens;
    auto operator<=>(const StepShape&) const = default;
  };
  Engine(Device& device, const NamedWeights& weights, std::unique_ptr<Decoder> decoder, StepPlans plans,
         const SchedulerOptions& options);
  Status take_memory();
  Status write_rope_table();
  Status add_ranks(const EngineOptions& options);
  // engine_steps.cc
  Status begin_steps();
  Status begin(std::vector<Chunk> chunks);
  Status enqueue_on_all_ranks(InFlight* step);
  Status fill_for_all_ranks(const InFlight& step);
  bool is_recorded(const InFlight& step) const;
  // kMake: makes the recording that the step replays, if it is missing, and runs nothing.
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
  int64_t chosen_tokens_ = 0;  // of the step enqueued last
  std::unique_ptr<StepStaging> staging_;
  DecoderHeld held_;  // weights and caches, as the decoder's steps read them
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
  Status draft_status_;  // of the draft head in the step before
  std::vector<FailedRequest> failed_;
  bool schedules_ = true;              // false: the engine of another rank than the first
  std::unique_ptr<OtherRanks> ranks_;  // set with other ranks
  MaskWorkers mask_workers_;           // last: its destructor waits for filters that are running
};

}  // namespace sluice
