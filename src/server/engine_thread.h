// The thread that steps the engine. Sequences arrive through a bounded queue, and the tokens of each step are delivered in one StepReport.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/worker_thread.h"
#include "engine/expert_counter.h"
#include "engine/mask_workers.h"
#include "engine/request.h"
#include "engine/speculation.h"
#include "graph/kernel_runs.h"

namespace sluice {
class Engine;
}

namespace sluice {

using Ticket = uint64_t;  // identifies a sequence; chosen by the caller

struct QueuedSequence {
  Ticket ticket = 0;
  Request request;
};

struct TicketToken {
  Ticket ticket = 0;
  GeneratedToken token;
};
struct TicketFault {
  Ticket ticket = 0;
  Status status;
};

// The results of one step.
struct StepReport {
  std::chrono::steady_clock::time_point begun, at;  // the step's beginning and end
  std::vector<Ticket> started;                      // entered the engine before this step
  std::vector<TicketToken> tokens;
  std::vector<TicketFault> faults;  // these sequences have ended
  int64_t drafts_not_finite = 0;    // DraftCounts::not_finite so far
};

// The state after the last step.
struct EngineLoad {
  int64_t running = 0, waiting = 0;
  int64_t pages = 0, free_pages = 0;
  int64_t preemptions = 0, steps = 0;
  // prompt tokens looked up in the prefix cache, and those found
  int64_t prefix_queries = 0, prefix_hits = 0;
  KernelRuns kernels = {};  // in all steps so far
  MaskCounts masks = {};
  std::optional<DraftCounts> drafts = {};  // with speculative decoding
  int64_t drafts_max = 0;                  // maximum draft tokens per sequence and step
  bool healthy = true;                     // the last step succeeded
  // Expert counts, about one second old at most, or from when the engine became idle. Null: experts are not counted.
  std::shared_ptr<const ExpertCounts> experts = {};
};

// Tickets must be unique. Every accepted sequence ends with a token whose `finish` gives the reason, or with a fault. After cancel(), a
// sequence gets at most the tokens that were already in flight.
class EngineThread {
 public:
  // Called on the engine's thread. It must neither block nor throw.
  using Deliver = std::function<void(StepReport)>;

  // `engine` must outlive this object. No other thread may use the engine while this object exists.
  EngineThread(Engine& engine, int64_t max_queue, Deliver deliver);
  ~EngineThread();  // waits for the step in flight
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Thread-safe. Accepts all sequences or none: returns false if they do not fit, and throws std::bad_alloc if memory is exhausted.
  bool submit(std::vector<QueuedSequence> sequences);
  // Takes effect before the next step; ignores tickets that have ended.
  void cancel(const std::vector<Ticket>& tickets);
  EngineLoad load() const;
  int64_t places() const;  // how many sequences submit() would pass to the engine now without queueing any
  // How many sequences submit() accepts when the engine and the queue are empty.
  int64_t capacity() const { return max_queue_ + max_running_; }

 private:
  int64_t places_while_locked() const;
  void run();
  bool wait_for_work();  // false: shutdown
  void admit(StepReport* report);
  void step(StepReport* report);
  void ask_expert_counts_in_time();
  void note_expert_counts();
  void fail_some(StepReport* report);
  void fail_all(const Status& status, StepReport* report);
  void fail_all_for_memory(StepReport* report);
  void note_load(bool healthy);

  Engine& engine_;
  const int64_t max_queue_, max_running_;
  Deliver deliver_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by the mutex.
  std::list<QueuedSequence> waiting_;  // a list, because splicing does not allocate
  std::vector<Ticket> cancelled_;
  EngineLoad load_;
  bool end_ = false;
  // Used only by the engine's thread. admitted_: sequences about to enter the engine. The maps cover the sequences in the engine.
  std::list<QueuedSequence> admitted_;
  std::unordered_map<int64_t, Ticket> ticket_of_;
  std::unordered_map<Ticket, int64_t> id_of_;
  std::chrono::steady_clock::time_point expert_counts_asked_ = {};
  WorkerThread thread_;  // last: the thread uses all members above
};

}  // namespace sluice
