#include "server/engine_thread.h"

#include <algorithm>
#include <utility>

#include "engine/engine.h"
#include "server/memory.h"

namespace sluice {
namespace {

constexpr std::chrono::seconds kExpertCountsEvery{1};
constexpr std::chrono::milliseconds kResultPatience{1000}, kRetry{10};

}  // namespace

EngineThread::EngineThread(Engine& engine, int64_t max_queue, Deliver deliver)
    : engine_(engine),
      max_queue_(max_queue),
      max_running_(engine.decoder().bounds().sequences),
      deliver_(std::move(deliver)) {
  note_load(true);
  thread_ = WorkerThread([this] { run(); });
}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

bool EngineThread::submit(std::vector<QueuedSequence> sequences) {
  std::list<QueuedSequence> all;
  for (QueuedSequence& s : sequences) all.push_back(std::move(s));
  {
    const std::lock_guard lock(mutex_);
    if (std::ssize(waiting_) + std::ssize(all) > places_while_locked()) return false;
    waiting_.splice(waiting_.end(), all);
  }
  wake_.notify_one();
  return true;
}

void EngineThread::cancel(const std::vector<Ticket>& tickets) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.insert(cancelled_.end(), tickets.begin(), tickets.end());
  }
  wake_.notify_one();
}

int64_t EngineThread::places_while_locked() const {
  return max_queue_ + std::max<int64_t>(max_running_ - load_.running, 0);
}

int64_t EngineThread::places() const {
  const std::lock_guard lock(mutex_);
  return places_while_locked();
}

EngineLoad EngineThread::load() const {
  const std::lock_guard lock(mutex_);
  EngineLoad load = load_;
  load.waiting = std::ssize(waiting_);
  return load;
}

void EngineThread::run() {
  be_patient_for_memory(kResultPatience);
  const auto note = [&] {
    if (engine_.idle()) note_expert_counts();
  };
  while (wait_for_work()) {
    StepReport report;
    report.begun = std::chrono::steady_clock::now();
    const auto make_step = [&] {
      admit(&report);
      step(&report);
    };
    if (!has_memory_for(make_step)) fail_all_for_memory(&report);
    if (!report.started.empty() || !report.tokens.empty() || !report.faults.empty())
      deliver_(std::move(report));
    // Only after the last tokens are delivered, because reading the counts waits for the engine's steps in flight.
    (void)has_memory_for(note);  // if memory runs out, the previous counts stay
  }
}

bool EngineThread::wait_for_work() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return end_ || !waiting_.empty() || !cancelled_.empty() || !engine_.idle(); });
  return !end_;
}

// Cancels sequences first, because that frees places in the engine's batch.
void EngineThread::admit(StepReport* report) {
  std::vector<Ticket> cancelled;
  {
    const std::lock_guard lock(mutex_);
    cancelled.swap(cancelled_);
    const auto is_cancelled = [&](const QueuedSequence& s) {
      return std::find(cancelled.begin(), cancelled.end(), s.ticket) != cancelled.end();
    };
    if (!cancelled.empty()) std::erase_if(waiting_, is_cancelled);
  }
  for (const Ticket ticket : cancelled) {
    const auto found = id_of_.find(ticket);
    if (found == id_of_.end()) continue;
    engine_.cancel(found->second);
    ticket_of_.erase(found->second);
    id_of_.erase(found);
  }
  {
    const std::lock_guard lock(mutex_);
    while (!waiting_.empty() && std::ssize(id_of_) + std::ssize(admitted_) < max_running_)
      admitted_.splice(admitted_.end(), waiting_, waiting_.begin());
    load_.running = std::ssize(id_of_) + std::ssize(admitted_);
  }
  for (; !admitted_.empty(); admitted_.pop_front()) {
    QueuedSequence& s = admitted_.front();
    const auto id = engine_.add(std::move(s.request));
    if (!id.ok()) {
      report->faults.push_back({s.ticket, id.status()});
      continue;
    }
    ticket_of_[id.value()] = s.ticket;
    id_of_[s.ticket] = id.value();
    report->started.push_back(s.ticket);
  }
}

void EngineThread::step(StepReport* report) {
  if (engine_.idle()) return note_load(load().healthy);
  ask_expert_counts_in_time();
  auto tokens = engine_.step();
  report->at = std::chrono::steady_clock::now();
  report->drafts_not_finite = engine_.draft_counts().not_finite;
  fail_some(report);
  if (!tokens.ok()) {
    fail_all(tokens.status(), report);
    return note_load(false);
  }
  // an allocation below could fail and lose a request's last token
  report->tokens.reserve(tokens.value().size());
  for (GeneratedToken& token : tokens.value()) {
    const auto found = ticket_of_.find(token.request);
    if (found == ticket_of_.end()) continue;
    const bool goes_on = token.finish == FinishReason::kNone;
    report->tokens.push_back({found->second, std::move(token)});
    if (goes_on) continue;
    id_of_.erase(found->second);
    ticket_of_.erase(found);
  }
  note_load(true);
}

void EngineThread::ask_expert_counts_in_time() {
  const auto now = std::chrono::steady_clock::now();
  if (now - expert_counts_asked_ < kExpertCountsEvery) return;
  expert_counts_asked_ = now;
  (void)engine_.ask_expert_counts();  // sets only a flag while the engine is busy
}

void EngineThread::note_expert_counts() {
  (void)engine_.ask_expert_counts();  // a lasting error will fail the next step
  const std::lock_guard lock(mutex_);
  load_.experts = engine_.expert_counts();
}

// Reports the requests whose token filter failed.
void EngineThread::fail_some(StepReport* report) {
  for (FailedRequest& failed : engine_.take_failed()) {
    const auto found = ticket_of_.find(failed.request);
    if (found == ticket_of_.end()) continue;
    report->faults.push_back({found->second, std::move(failed.status)});
    id_of_.erase(found->second);
    ticket_of_.erase(found);
  }
}

// Fails all sequences, because after a device fault none of them can continue.
void EngineThread::fail_all(const Status& status, StepReport* report) {
  for (const auto& [id, ticket] : ticket_of_) {
    engine_.cancel(id);
    report->faults.push_back({ticket, status});
  }
  ticket_of_.clear();
  id_of_.clear();
}

// Fails all sequences: memory ran out during a step, and it is unknown how far the step got.
void EngineThread::fail_all_for_memory(StepReport* report) {
  const auto fail = [&] {
    StepReport failed;
    failed.at = std::chrono::steady_clock::now();
    const Status status{Code::kOutOfMemory, {}};
    for (const auto& s : admitted_) failed.faults.push_back({s.ticket, status});
    for (const auto& [id, ticket] : ticket_of_) failed.faults.push_back({ticket, status});
    for (const TicketFault& fault : report->faults) failed.faults.push_back(fault);
    *report = std::move(failed);
  };
  while (!has_memory_for(fail)) std::this_thread::sleep_for(kRetry);
  for (const auto& [id, ticket] : ticket_of_) engine_.cancel(id);
  admitted_.clear();
  ticket_of_.clear();
  id_of_.clear();
  note_load(true);
}

void EngineThread::note_load(bool healthy) {
  const std::lock_guard lock(mutex_);
  load_.running = std::ssize(id_of_);
  load_.pages = engine_.memory().pages;
  load_.free_pages = engine_.scheduler().free_pages();
  load_.preemptions = engine_.scheduler().preemptions();
  const PrefixCacheCounts prefix = engine_.scheduler().prefix_cache();
  load_.prefix_queries = prefix.queries;
  load_.prefix_hits = prefix.hits;
  load_.masks = engine_.mask_counts();
  load_.steps = engine_.steps();
  load_.drafts_max = engine_.speculation().num_speculative_tokens;
  if (load_.drafts_max > 0) load_.drafts = engine_.draft_counts();
  // Allocates only if a kernel has run for the first time.
  (void)has_memory_for([&] { load_.kernels = engine_.kernel_runs(); });
  load_.experts = engine_.expert_counts();
  load_.healthy = healthy;
}

}  // namespace sluice
