// Running requests: adds the engine's tokens to their answers and sends the events to the clients. Large pieces of work run on workers,
// because one answer may have millions of log probabilities, and while the loop writes them, all other requests wait.
#include "server/api_active.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "base/printable.h"
#include "server/api_errors.h"
#include "server/memory.h"
#include "server/server_text.h"

namespace sluice {
namespace {

// A score is one log probability to write as JSON. After this many scores per step, which take a few milliseconds, work goes to workers.
constexpr int64_t kLoopWork = 8192;
// Work of at most this many scores always runs on the loop, so that small answers never wait for large ones.
constexpr int64_t kSmallWork = 1024;
constexpr int64_t kBytesOfScore = 64;      // size of a score in JSON
constexpr int64_t kKeptBytesOfScore = 24;  // size of a score in memory, including its share of the token's
                                           // data
constexpr size_t kIgnoredNamesMax = 256;   // limit of remembered field names

// Status 400, because a retry cannot help: the request has more choices than the engine and its queue can hold.
ApiError too_many(int64_t found, int64_t limit, const SettingNames& names) {
  return {.message = "n: wanted at most " + std::to_string(limit) +
                     " choices of all prompts, the capacity of the engine and its queue (" +
                     names.max_num_seqs + ", " + names.max_queue + "), found " + std::to_string(found),
          .param = "n"};
}

ApiError error_of(const Status& fault) {
  if (fault.code == Code::kOutOfMemory && fault.message.empty()) return no_memory();
  const bool wrong_use = fault.code == Code::kInvalidArgument;
  return {.status = wrong_use                          ? 400
                    : fault.code == Code::kOutOfMemory ? 503
                                                       : 500,
          .message = fault.message,
          .type = wrong_use ? "invalid_request_error" : "server_error"};
}

}  // namespace

int64_t ApiServer::Active::prompt_tokens() const {
  return std::accumulate(prompt_lengths.begin(), prompt_lengths.end(), int64_t{0});
}

int64_t ApiServer::Active::completion_tokens() const {
  if (request.sampling.max_tokens == 0) return 0;  // the sampled token is not part of the answer
  int64_t sum = 0;
  for (const Sequence& s : sequences) sum += s.tokens;
  return sum;
}

int64_t ApiServer::Active::work_of(const GeneratedToken& token) const {
  const int64_t each = request.sampling.logprobs ? 1 + *request.sampling.logprobs : 0;
  const bool begins = request.stream && !begun;  // the first event of a response repeats the request
  return each * (1 + std::ssize(token.prompt)) +
         (begins ? std::ssize(request.response.given_back) / kBytesOfScore : 0);
}

bool ApiServer::Active::end_repeats() const { return !request.stream || request.kind == ApiKind::kResponse; }

int64_t ApiServer::Active::work_of_end() const {
  return end_repeats() ? kept + std::ssize(request.response.given_back) / kBytesOfScore : 0;
}

int64_t ApiServer::Active::kept_bytes() const {
  return kept * (kKeptBytesOfScore + (end_repeats() ? kBytesOfScore : 0));
}

void ApiServer::note_ignored(const std::string& id, const ApiRequest& request) {
  const auto is_new = [&](const std::string& name) {
    return ignored_.size() < kIgnoredNamesMax && ignored_.insert(name).second;
  };
  for (const std::string& field : request.ignored)
    if (is_new(field)) log(id, "ignoring the unknown field '" + field + "' of requests");
  for (const std::string& wish : request.unmet)
    if (is_new("unmet: " + wish))
      log(id, "requests ask for " + wish + ", which this server does not provide");
  for (const std::string& type : request.tools.left_out)
    if (is_new("tools: " + type))
      log(id, "ignoring the hosted tool '" + shortened(type) + "' of requests: this server cannot run it");
}

void ApiServer::begin(const Exchange& exchange, Clock::time_point arrived, ServedModel::Prepared prepared) {
  if (is_shutting_down()) return respond(exchange, shutting_down());
  const ApiRequest& request = prepared.request;
  if (!model_.serves(request.model)) return respond(exchange, unknown_model(request.model));
  note_ignored(exchange->id(), request);
  const int64_t count = std::ssize(prepared.prompts) * request.choices;
  if (count > engine_.capacity())
    return respond(exchange, too_many(count, engine_.capacity(), options_.names));
  std::vector<QueuedSequence> sequences;
  const Ticket first = next_ticket_;
  for (const auto& prompt : prepared.prompts)
    for (int64_t i = 0; i < request.choices; ++i) {
      sequences.push_back({next_ticket_++, {.prompt = prompt, .sampling = prepared.sampling}});
      if (prepared.make_filter) sequences.back().request.filter = prepared.make_filter();
      *sequences.back().request.sampling.seed += static_cast<uint64_t>(i);
    }
  const auto active = std::make_shared<Active>(
      model_.format(), std::move(prepared), exchange,
      AnswerHead{.id = exchange->id(),
                 .created = std::time(nullptr),
                 .model = request.model.empty() ? model_.names().front() : request.model,
                 .unique = random_name()});
  active->arrived = arrived;
  active->first_ticket = first;
  active->sequences.resize(sequences.size());
  for (const QueuedSequence& s : sequences) active->prompt_lengths.push_back(std::ssize(s.request.prompt));
  if (!has_memory_for([&] { enter(active, std::move(sequences)); })) fail_for_memory(active);
}

void ApiServer::enter(const std::shared_ptr<Active>& active, std::vector<QueuedSequence> sequences) {
  active_.insert(active);
  touched_.reserve(active_.size());  // so that take() can add requests without allocating
  for (const QueuedSequence& s : sequences) by_ticket_[s.ticket] = active;
  if (!engine_.submit(std::move(sequences))) {
    forget(active);
    return respond(active->exchange, overloaded(options_.max_queue, options_.names));
  }
  active->exchange->on_loss = [this, weak = std::weak_ptr<Active>(active)](ClientLoss how) {
    if (const auto lost = weak.lock()) abandon(lost, how);
  };
}

void ApiServer::take(StepReport* report) {
  work_ = 0;
  if (report->drafts_not_finite > 0 && !std::exchange(draft_fault_logged_, true))
    log("",
        "the draft layer computes scores that are not finite: its drafts are not used, answers are the same");
  for (const Ticket ticket : report->started) {
    const auto found = by_ticket_.find(ticket);
    if (found == by_ticket_.end()) continue;
    Active& a = *found->second;
    auto& s = a.sequences[ticket - a.first_ticket];
    s.started = report->begun;
    a.started = true;
    metrics_.queue.observe(seconds_between(a.arrived, s.started));
  }
  if (!report->tokens.empty()) metrics_.step_tokens.observe(static_cast<double>(report->tokens.size()));
  for (TicketToken& token : report->tokens) {
    const auto found = by_ticket_.find(token.ticket);
    if (found == by_ticket_.end()) continue;
    const std::shared_ptr<Active> active = found->second;
    if (!active->touched) touched_.push_back(active);
    active->touched = true;
    if (!has_memory_for([&] { take_token(active, std::move(token), report->at); })) fail_for_memory(active);
  }
  // All events of a step go into one HttpExchange::write(), because a client may fall behind by one write of any size.
  for (const auto& active : touched_) {
    active->touched = false;
    if (active_.contains(active) && !has_memory_for([&] { send(active.get()); })) fail_for_memory(active);
  }
  touched_.clear();
  for (const TicketFault& fault : report->faults) {
    const auto found = by_ticket_.find(fault.ticket);
    if (found == by_ticket_.end()) continue;
    const std::shared_ptr<Active> active = found->second;
    if (!has_memory_for([&] { fail(active, error_of(fault.status)); })) fail_for_memory(active);
  }
}

void ApiServer::take_token(const std::shared_ptr<Active>& active, TicketToken t, Clock::time_point at) {
  active->kept += active->work_of(t.token);
  if (active->away) return active->later.push_back({std::move(t), at}), void();
  push_token(active, std::move(t), at);
}

void ApiServer::push_token(const std::shared_ptr<Active>& active, TicketToken t, Clock::time_point at) {
  const auto choice = static_cast<int64_t>(t.ticket - active->first_ticket);
  if (active->sequences[static_cast<size_t>(choice)].ended) return;
  note_token(active.get(), static_cast<size_t>(choice), at);
  const int64_t work = active->work_of(t.token);
  active->begun = true;
  if (is_small(work)) {
    active->answer->push(choice, t.token, &active->events);
    return token_taken(active, t, at);
  }
  const auto shared = std::make_shared<const TicketToken>(std::move(t));
  send_away(
      active, [a = active.get(), choice, shared] { a->answer->push(choice, shared->token, &a->events); },
      [this, active, shared, at] { token_taken(active, *shared, at); });
}

bool ApiServer::is_small(int64_t work) {
  if (work > kSmallWork && work_ + work > kLoopWork) return false;
  work_ += work;
  return true;
}

void ApiServer::note_token(Active* active, size_t choice, Clock::time_point at) {
  auto& s = active->sequences[choice];
  if (s.tokens++ == 0) {
    s.first_token = at;
    metrics_.first_token.observe(seconds_between(active->arrived, at));
    metrics_.prefill.observe(seconds_between(s.started, at));
    metrics_.prompt_tokens += active->prompt_lengths[choice];
  } else {
    metrics_.between_tokens.observe(seconds_between(s.last_token, at));
  }
  s.last_token = at;
  if (active->request.sampling.max_tokens != 0) ++metrics_.generation_tokens;
}

void ApiServer::token_taken(const std::shared_ptr<Active>& active, const TicketToken& t,
                            Clock::time_point at) {
  const size_t choice = t.ticket - active->first_ticket;
  if (active->answer->done(static_cast<int64_t>(choice))) note_end(active.get(), choice, t.token, at);
  if (active->answer->done() && active_.contains(active)) complete(active);
}

void ApiServer::note_end(Active* active, size_t choice, const GeneratedToken& token, Clock::time_point at) {
  auto& s = active->sequences[choice];
  const Ticket ticket = active->first_ticket + choice;
  s.ended = true;
  by_ticket_.erase(ticket);
  if (token.finish == FinishReason::kNone) engine_.cancel({ticket});  // a stop string ended the choice
  const auto length = static_cast<double>(active->request.sampling.max_tokens == 0 ? 0 : s.tokens);
  ++metrics_.finished[std::string(text(active->answer->finish_reason(static_cast<int64_t>(choice))))];
  metrics_.whole.observe(seconds_between(active->arrived, at));
  metrics_.decode.observe(seconds_between(s.first_token, at));
  metrics_.generation_lengths.observe(length);
  metrics_.prompt_lengths.observe(static_cast<double>(active->prompt_lengths[choice]));
  if (s.tokens > 1) metrics_.per_output_token.observe(seconds_between(s.first_token, at) / (length - 1));
}

void ApiServer::send_away(const std::shared_ptr<Active>& active, std::function<void()> work,
                          std::function<void()> then) {
  struct Errand {
    std::function<void()> work, then;
  };
  const auto errand = std::make_shared<const Errand>(std::move(work), std::move(then));
  const auto job = [this, active, errand](const std::stop_token&) {
    const bool done = !active->over && has_memory_for(errand->work);
    post([this, active, errand, done] { take_home(active, done, errand->then); });
  };
  answer_workers_.submit(std::stop_source(std::nostopstate), job);
  active->away = true;
}

void ApiServer::take_home(const std::shared_ptr<Active>& active, bool done,
                          const std::function<void()>& then) noexcept {
  active->away = false;
  if (!active_.contains(active)) return destroy(active.get());  // the client disconnected
  if (!done) return fail_for_memory(active);
  work_ = 0;
  const auto take = [&] {
    if (active->fault) return fail(active, ApiError(*active->fault));
    then();
    go_on(active);
  };
  if (!has_memory_for(take)) fail_for_memory(active);
}

void ApiServer::go_on(const std::shared_ptr<Active>& active) {
  while (!active->away && !active->later.empty() && active_.contains(active)) {
    Active::Later next = std::move(active->later.front());
    active->later.pop_front();
    push_token(active, std::move(next.token), next.at);
  }
  if (active_.contains(active)) send(active.get());
}

void ApiServer::send(Active* active) {
  if (!active->request.stream || active->away) return;
  if (!active->streaming) {
    active->exchange->begin_stream(
        {.content_type = "text/event-stream; charset=utf-8",
         .headers = {{"Cache-Control", "no-cache"},
                     {"X-Accel-Buffering", "no"}}});  // proxies must forward events at once
    active->streaming = true;
    ++metrics_.answers[200];
  }
  active->exchange->write(std::exchange(active->events, {}));
}

void ApiServer::complete(const std::shared_ptr<Active>& active) {
  if (is_small(active->work_of_end())) return finish(active, active->answer->finish());
  const auto rest = std::make_shared<std::string>();
  send_away(
      active, [a = active.get(), rest] { *rest = a->answer->finish(); },
      [this, active, rest] { finish(active, std::move(*rest)); });
}

void ApiServer::finish(const std::shared_ptr<Active>& active, std::string rest) {
  if (auto response = active->answer->stored(); response && !responses_.put(active->answer->id(), response))
    log(active->exchange->id(), "the response exceeds the limit of stored responses and is not stored");
  active->exchange->on_loss = {};
  if (active->request.stream) {
    send(active.get());
    active->exchange->write(std::move(rest));
    active->exchange->end();
  } else {
    respond(active->exchange, HttpResponse{.body = std::move(rest)});
  }
  log_end(*active, std::string(text(active->answer->finish_reason(0))));
  forget(active);
}

void ApiServer::fail(const std::shared_ptr<Active>& active, const ApiError& error) {
  if (active->away) {
    if (!active->fault) active->fault = error;
    return;
  }
  active->exchange->on_loss = {};
  if (active->streaming) {
    active->exchange->write(active->events + active->answer->fail(error));
    active->exchange->end();
  } else {
    respond(active->exchange, error);
  }
  metrics_.finished["error"] += static_cast<int64_t>(active->sequences.size());
  log_end(*active, "error: " + error.message);
  forget(active);
}

void ApiServer::fail_for_memory(const std::shared_ptr<Active>& active) noexcept {
  if (has_memory_for([&] { fail(active, no_memory()); })) return;
  active->exchange->on_loss = {};
  active->exchange->drop();
  forget_surely(active);
}

void ApiServer::abandon(const std::shared_ptr<Active>& active, ClientLoss how) noexcept {
  ++metrics_.clients_lost;
  const bool told = has_memory_for([&] {
    for (const auto& s : active->sequences) metrics_.finished["abort"] += s.ended ? 0 : 1;
    log_end(*active, text(how, options_.names));
    forget(active);
  });
  if (!told) forget_surely(active);
}

// Retries until there is memory, because the engine generates tokens for a lost client until its sequences are cancelled.
void ApiServer::forget_surely(const std::shared_ptr<Active>& active) noexcept {
  surely([&] { forget(active); });
}

void ApiServer::forget(const std::shared_ptr<Active>& active) {
  std::vector<Ticket> left;
  for (size_t i = 0; i < active->sequences.size(); ++i) {
    if (active->sequences[i].ended) continue;
    left.push_back(active->first_ticket + i);
    by_ticket_.erase(left.back());
  }
  if (!left.empty()) engine_.cancel(left);
  active_.erase(active);
  active->over = true;
  destroy(active.get());
}

// Ends the answers that keep the most bytes until the rest is within the limit. An ended answer does not count, even while a worker owns it.
void ApiServer::bound_answers() {
  const auto bytes = [](const std::shared_ptr<Active>& a) { return a->fault ? int64_t{0} : a->kept_bytes(); };
  int64_t all = 0;
  for (const auto& active : active_) all += bytes(active);
  while (all > options_.max_answer_bytes) {
    const auto less = [&](const auto& a, const auto& b) { return bytes(a) < bytes(b); };
    const std::shared_ptr<Active> largest = *std::max_element(active_.begin(), active_.end(), less);
    all -= bytes(largest);
    fail(largest, too_much_kept(options_.max_answer_bytes, options_.names));
  }
}

// Freeing a million small allocations takes a while, so large answers are freed on a worker.
void ApiServer::destroy(Active* active) noexcept {
  if (active->away || active->kept <= kLoopWork) return;
  (void)has_memory_for([&] {
    answer_workers_.submit(std::stop_source(std::nostopstate),
                           [dead = std::move(active->answer), later = std::move(active->later)](
                               const std::stop_token&) mutable { dead.reset(), later.clear(); });
  });
}

void ApiServer::log_end(const Active& a, const std::string& how) {
  const auto& s = a.sequences.front();
  constexpr const char* kKinds[] = {"chat", "completion", "response"};  // by ApiKind
  const char* kind = kKinds[static_cast<size_t>(a.request.kind)];
  const double first = s.tokens ? seconds_between(a.arrived, s.first_token) : 0.;
  const double whole = seconds_between(a.arrived, Clock::now());
  char times[96];
  std::snprintf(times, sizeof times, "first token after %.3f s, end after %.3f s: ", first, whole);
  log_.write(a.exchange->id(),
             std::string(kind) + ' ' + std::to_string(a.prompt_tokens()) + " tokens in, " +
                 std::to_string(a.completion_tokens()) + " out, " + times + how,
             {{"kind", kind},
              {"prompt_tokens", a.prompt_tokens()},
              {"completion_tokens", a.completion_tokens()},
              {"first_token_seconds", first},
              {"seconds", whole},
              {"end", how}});
}

}  // namespace sluice
