// The thread that steps the engine: sequences come in through a bounded queue, tokens go out once a step.
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

using Ticket = uint64_t;  // the caller's number of a sequence

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

// What one step gave.
struct StepReport {
  std::chrono::steady_clock::time_point at;
  std::vector<Ticket> started;  // entered the engine before it
  std::vector<TicketToken> tokens;
  std::vector<TicketFault> faults;  // these sequences have ended
};

// As it was after the last step.
struct EngineLoad {
  int64_t running = 0, waiting = 0;
  int64_t pages = 0, free_pages = 0;
  int64_t preemptions = 0, steps = 0;
  int64_t prefix_queries = 0, prefix_hits = 0;  // tokens of prompts, looked for in the prefix cache and found
  KernelRuns kernels = {};                      // of all steps
  MaskCounts masks = {};
  std::optional<DraftCounts> drafts = {};  // with speculative decoding
  int64_t drafts_most = 0;                 // of one sequence in one step
  bool healthy = true;                     // the last step that was made did not fail
  // Little more than a second old, or as they were when the engine became idle; null: not counted.
  std::shared_ptr<const ExpertCounts> experts = {};
};

// Tickets are unique. Every sequence that was taken ends with a last token (its `finish` says why) or with a fault, unless it is
// cancelled: then nothing more comes of it but what was under way.
class EngineThread {
 public:
  using Deliver =
      std::function<void(StepReport)>;  // called on the engine's thread; it must not wait, nor throw

  // `engine` must outlive it, and nobody else may use it meanwhile.
  EngineThread(Engine& engine, int64_t max_queue, Deliver deliver);
  ~EngineThread();  // ends after the step under way
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // From any thread. Takes all of them, or none where they do not fit (false) or there is no memory (std::bad_alloc).
  bool submit(std::vector<QueuedSequence> sequences);
  void cancel(const std::vector<Ticket>& tickets);  // before the next step; of one that has ended: nothing
  EngineLoad load() const;
  int64_t places() const;                                         // sequences that it takes while none waits
  int64_t capacity() const { return max_queue_ + max_running_; }  // sequences that it takes while it has none

 private:
  int64_t places_while_locked() const;
  void run();
  bool wait_for_work();  // false: the end
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
  std::list<QueuedSequence> waiting_;  // which go from list to list without memory for it
  std::vector<Ticket> cancelled_;
  EngineLoad load_;
  bool end_ = false;
  // The thread's own: sequences that are about to enter the engine; those in it, both ways.
  std::list<QueuedSequence> admitted_;
  std::unordered_map<int64_t, Ticket> ticket_of_;
  std::unordered_map<Ticket, int64_t> id_of_;
  std::chrono::steady_clock::time_point expert_counts_asked_ = {};
  WorkerThread thread_;  // last: it uses all of the above
};

}  // namespace sluice
