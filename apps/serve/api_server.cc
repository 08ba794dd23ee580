#include "apps/serve/api_server.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <thread>
#include <utility>
#include <variant>

#include "apps/serve/api_errors.h"
#include "apps/serve/memory.h"
#include "apps/serve/openapi.h"
#include "apps/serve/server_text.h"
#include "base/printable.h"

namespace sluice::apps {
namespace {

constexpr int kWorkers = 2;
constexpr int64_t kStoredBytes = 64 << 20;  // of answers that are kept
constexpr size_t kIgnoredMax = 256;         // names of fields that are remembered
constexpr int64_t kSmallBody = 64 << 10;    // bytes that are read in a millisecond or so
constexpr std::chrono::milliseconds kRetry{10};

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// For what must not be lost, and wants little memory: waits until there is some.
template <class F>
void surely(F&& f) noexcept {
  while (!has_memory_for(f)) std::this_thread::sleep_for(kRetry);
}

// No waiting helps.
ApiError too_many(int64_t found, int64_t most) {
  return {
      .message = "n: wanted at most " + std::to_string(most) +
                 " answers to all prompts, what the engine and its queue have places for (--max-num-seqs, " +
                 "--max-queue), found " + std::to_string(found),
      .param = "n"};
}

void post(HttpServer& http, const std::function<void()>& work) noexcept {
  surely([&] { http.post(work); });
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

struct ApiServer::Active {
  Active(const ChatFormat& format, ServedModel::Prepared p, Exchange e, AnswerHead head)
      : exchange(std::move(e)),
        request(std::move(p.request)),
        answer(Answer::make(format, request, std::move(head), p.prompts, p.forced)) {}
  Exchange exchange;
  ApiRequest request;
  std::unique_ptr<Answer> answer;
  Ticket first_ticket = 0;
  struct Sequence {
    bool ended = false;  // the engine has no more of it
    int64_t tokens = 0;
    Clock::time_point started, first_token, last_token;
  };
  std::vector<Sequence> sequences;  // by choice
  std::vector<int64_t> prompt_lengths;
  std::string events;    // of a stream, that one step gives
  bool touched = false;  // by the step that is being taken
  Clock::time_point arrived;
  bool started = false;    // at least one sequence has entered the engine
  bool streaming = false;  // the head of the stream is written
};

struct ApiServer::Job {
  Job(Route r, HttpRequest asked, Exchange e) : route(r), request(std::move(asked)), exchange(std::move(e)) {}
  void read(const ServedModel& model, ResponseStore& responses);
  template <class F>
  void attempt(F&& f) noexcept;
  const Route route;
  HttpRequest request;
  const Exchange exchange;
  std::stop_source stop;
  // What it wants is wrong; the answer; what the engine is to do; none: there was no memory, or nobody wants it any more.
  std::variant<std::monostate, ApiError, std::string, ServedModel::Prepared> outcome;
};

// A fault of one request is that request's alone.
template <class F>
void ApiServer::Job::attempt(F&& f) noexcept {
  const auto try_it = [&] {
    try {
      f();
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& fault) {
      outcome = ApiError{.status = 500, .message = fault.what(), .type = "server_error"};
    }
  };
  if (!has_memory_for(try_it)) outcome = std::monostate();
}

void ApiServer::Job::read(const ServedModel& model, ResponseStore& responses) {
  const auto take = [this](auto result) {
    std::visit([this](auto& it) { outcome = std::move(it); }, result);
  };
  switch (route) {
    case Route::kTokenize:
      return take(model.tokenize(request.body));
    case Route::kDetokenize:
      return take(model.detokenize(request.body));
    case Route::kChat:
      return take(model.chat(request.body));
    case Route::kResponse:
      return take(model.response(request.body, [&](const std::string& id) { return responses.find(id); }));
    default:
      return take(model.completion(request.body));
  }
}

ApiServer::ApiServer(Engine& engine, const ServedModel& model, const ApiOptions& options, ServerLog& log)
    : model_(model),
      options_(options),
      created_(std::time(nullptr)),
      log_(log),
      access_(options.access),
      openapi_(std::make_shared<const std::string>(openapi_json(model.limits()))),
      responses_(options.max_stored, kStoredBytes),
      engine_(engine, options.max_queue,
              [this](StepReport report) {
                std::shared_ptr<StepReport> shared;
                surely([&] { shared = std::make_shared<StepReport>(std::move(report)); });
                post(*http_, [this, shared] { take(*shared); });
              }),
      slow_workers_(kWorkers),
      workers_(kWorkers) {}

ApiServer::~ApiServer() = default;

void ApiServer::attach(HttpServer& http) { http_ = &http; }

std::string ApiServer::error_body(int status, const std::string& message) {
  ++metrics_.answers[status];
  return error_json({.status = status, .message = message});
}

void ApiServer::log(std::string_view request, const std::string& text) { log_.write(request, text); }

void ApiServer::answer_later(Route route, HttpRequest request, const Exchange& exchange) {
  const auto job = std::make_shared<Job>(route, std::move(request), exchange);
  exchange->on_loss = [stop = job->stop](ClientLoss) mutable { stop.request_stop(); };
  WorkPool& pool = std::ssize(job->request.body) > kSmallBody ? slow_workers_ : workers_;
  jobs_.insert(job);
  const auto submit = [&] {
    pool.submit(job->stop, [this, job](std::stop_token stop) { prepare(job, std::move(stop)); });
  };
  if (!has_memory_for(submit)) end_job(job, no_memory());
}

void ApiServer::prepare(const std::shared_ptr<Job>& job, std::stop_token stop) noexcept {
  const bool small = std::ssize(job->request.body) <= kSmallBody;
  if (!stop.stop_requested())
    job->attempt([&] {
      if (!small) need_memory_for_json(job->request.body);
      job->read(model_, responses_);
    });
  std::string().swap(job->request.body);
  job->request.counted.reset();
  const auto* prepared = std::get_if<ServedModel::Prepared>(&job->outcome);
  if (!prepared) return come_back(job);
  if (!small || !ServedModel::compiles(prepared->request)) return constrain(job, std::move(stop));
  const bool submitted = has_memory_for([&] {
    slow_workers_.submit(job->stop, [this, job](std::stop_token s) { constrain(job, std::move(s)); });
  });
  if (submitted) return;
  job->outcome = std::monostate();
  come_back(job);
}

void ApiServer::constrain(const std::shared_ptr<Job>& job, std::stop_token stop) noexcept {
  job->attempt([&] {
    auto error = model_.constrain(&std::get<ServedModel::Prepared>(job->outcome), stop);
    if (error) job->outcome = std::move(*error);
  });
  come_back(job);
}

void ApiServer::come_back(const std::shared_ptr<Job>& job) noexcept {
  post(*http_, [this, job] { take_back(job); });
}

void ApiServer::take_back(const std::shared_ptr<Job>& job) {
  if (jobs_.erase(job) == 0) return;  // has ended
  const Exchange& exchange = job->exchange;
  exchange->on_loss = {};
  const auto go_on = [&] {
    if (!exchange->waits()) return log(exchange->id(), "left before it began");
    if (const auto* error = std::get_if<ApiError>(&job->outcome)) return respond(exchange, *error);
    if (auto* answer = std::get_if<std::string>(&job->outcome))
      return respond(exchange, HttpResponse{.body = std::move(*answer)});
    if (auto* prepared = std::get_if<ServedModel::Prepared>(&job->outcome))
      return begin(job, std::move(*prepared));
    respond(exchange, no_memory());
  };
  if (!has_memory_for(go_on)) refuse_for_memory(exchange);
}

void ApiServer::end_job(const std::shared_ptr<Job>& job, const ApiError& error) {
  job->stop.request_stop();
  job->exchange->on_loss = {};
  jobs_.erase(job);
  if (!has_memory_for([&] { respond(job->exchange, error); })) job->exchange->drop();
}

void ApiServer::note_ignored(const std::string& id, const ApiRequest& request) {
  const auto is_new = [&](const std::string& name) {
    return ignored_.size() < kIgnoredMax && ignored_.insert(name).second;
  };
  for (const std::string& field : request.ignored)
    if (is_new(field)) log(id, "requests name the field '" + field + "', which is unknown and ignored");
  for (const std::string& type : request.tools.left_out)
    if (is_new("tools: " + type))
      log(id, "requests offer the tool '" + shortened(type) + "', which no server here runs: it is left out");
}

void ApiServer::begin(const std::shared_ptr<Job>& job, ServedModel::Prepared prepared) {
  const Exchange& exchange = job->exchange;
  if (is_ending()) return respond(exchange, ending());
  const ApiRequest& request = prepared.request;
  if (!model_.serves(request.model)) return respond(exchange, unknown_model(request.model));
  note_ignored(exchange->id(), request);
  const int64_t count = std::ssize(prepared.prompts) * request.choices;
  if (count > engine_.capacity()) return respond(exchange, too_many(count, engine_.capacity()));
  std::vector<QueuedSequence> sequences;
  const Ticket first = next_ticket_;
  for (const auto& prompt : prepared.prompts)
    for (int64_t i = 0; i < request.choices; ++i) {
      sequences.push_back({next_ticket_++, {.prompt = prompt, .sampling = prepared.sampling}});
      if (prepared.make_filter) sequences.back().request.filter = prepared.make_filter();
      sequences.back().request.sampling.seed += static_cast<uint64_t>(i);
    }
  const auto active = std::make_shared<Active>(
      model_.format(), std::move(prepared), exchange,
      AnswerHead{.id = exchange->id(),
                 .created = std::time(nullptr),
                 .model = request.model.empty() ? model_.names().front() : request.model,
                 .unique = random_name()});
  active->arrived = job->request.arrived;
  active->first_ticket = first;
  active->sequences.resize(sequences.size());
  for (const QueuedSequence& s : sequences) active->prompt_lengths.push_back(std::ssize(s.request.prompt));
  if (!has_memory_for([&] { enter(active, std::move(sequences)); })) fail_for_memory(active);
}

void ApiServer::enter(const std::shared_ptr<Active>& active, std::vector<QueuedSequence> sequences) {
  active_.insert(active);
  touched_.reserve(active_.size());  // take() must not want memory for it
  for (const QueuedSequence& s : sequences) by_ticket_[s.ticket] = active;
  if (!engine_.submit(std::move(sequences))) {
    forget(active);
    return respond(active->exchange, overloaded(options_.max_queue));
  }
  active->exchange->on_loss = [this, weak = std::weak_ptr<Active>(active)](ClientLoss how) {
    if (const auto lost = weak.lock()) abandon(lost, how);
  };
}

void ApiServer::take(const StepReport& report) {
  for (const Ticket ticket : report.started) {
    const auto found = by_ticket_.find(ticket);
    if (found == by_ticket_.end()) continue;
    Active& a = *found->second;
    auto& s = a.sequences[ticket - a.first_ticket];
    s.started = report.at;
    a.started = true;
    metrics_.queue.observe(seconds_between(a.arrived, report.at));
  }
  if (!report.tokens.empty()) metrics_.step_tokens.observe(static_cast<double>(report.tokens.size()));
  for (const TicketToken& token : report.tokens) {
    const auto found = by_ticket_.find(token.ticket);
    if (found == by_ticket_.end()) continue;
    const std::shared_ptr<Active> active = found->second;
    if (!active->touched) touched_.push_back(active);
    active->touched = true;
    if (!has_memory_for([&] { take_token(active, token, report.at); })) fail_for_memory(active);
  }
  // What a step gives is written as one: see HttpExchange::write().
  for (const auto& active : touched_) {
    active->touched = false;
    if (active_.contains(active) && !has_memory_for([&] { send(active.get()); })) fail_for_memory(active);
  }
  touched_.clear();
  for (const TicketFault& fault : report.faults) {
    const auto found = by_ticket_.find(fault.ticket);
    if (found == by_ticket_.end()) continue;
    const std::shared_ptr<Active> active = found->second;
    if (!has_memory_for([&] { fail(active, error_of(fault.status)); })) fail_for_memory(active);
  }
}

void ApiServer::take_token(const std::shared_ptr<Active>& active, const TicketToken& t,
                           Clock::time_point at) {
  const auto choice = static_cast<int64_t>(t.ticket - active->first_ticket);
  auto& s = active->sequences[static_cast<size_t>(choice)];
  if (s.tokens++ == 0) {
    s.first_token = at;
    metrics_.first_token.observe(seconds_between(active->arrived, at));
    metrics_.prefill.observe(seconds_between(s.started, at));
    metrics_.prompt_tokens += active->prompt_lengths[static_cast<size_t>(choice)];
  } else {
    metrics_.between_tokens.observe(seconds_between(s.last_token, at));
  }
  s.last_token = at;
  ++metrics_.generation_tokens;
  active->answer->push(choice, t.token, &active->events);
  if (active->answer->done(choice)) {
    s.ended = true;
    by_ticket_.erase(t.ticket);
    if (t.token.finish == FinishReason::kNone) engine_.cancel({t.ticket});  // a stop string
    const auto length = static_cast<double>(s.tokens);
    ++metrics_.finished[std::string(text(active->answer->finish_reason(choice)))];
    metrics_.whole.observe(seconds_between(active->arrived, at));
    metrics_.decode.observe(seconds_between(s.first_token, at));
    metrics_.generation_lengths.observe(length);
    metrics_.prompt_lengths.observe(static_cast<double>(active->prompt_lengths[static_cast<size_t>(choice)]));
    if (s.tokens > 1) metrics_.per_output_token.observe(seconds_between(s.first_token, at) / (length - 1));
  }
  if (active->answer->done() && active_.contains(active)) complete(active);
}

void ApiServer::send(Active* active) {
  if (!active->request.stream) return;
  if (!active->streaming) {
    active->exchange->begin_stream(
        {.content_type = "text/event-stream; charset=utf-8",
         .headers = {{"Cache-Control", "no-cache"},
                     {"X-Accel-Buffering", "no"}}});  // events pass proxies at once
    active->streaming = true;
    ++metrics_.answers[200];
  }
  active->exchange->write(active->events);
  active->events.clear();
}

void ApiServer::complete(const std::shared_ptr<Active>& active) {
  std::string rest = active->answer->finish();
  if (auto response = active->answer->stored(); response && !responses_.put(active->answer->id(), response))
    log(active->exchange->id(), "the response is larger than all that may be stored, and is not");
  active->exchange->on_loss = {};
  if (active->request.stream) {
    active->events += rest;
    send(active.get());
    active->exchange->end();
  } else {
    respond(active->exchange, HttpResponse{.body = std::move(rest)});
  }
  log_end(*active, std::string(text(active->answer->finish_reason(0))));
  forget(active);
}

void ApiServer::fail(const std::shared_ptr<Active>& active, const ApiError& error) {
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
    log_end(*active, text(how));
    forget(active);
  });
  if (!told) forget_surely(active);
}

// The engine computes for nobody until it knows, so it is told as soon as there is memory to.
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
}

void ApiServer::log_end(const Active& a, const std::string& how) {
  const auto& s = a.sequences.front();
  constexpr const char* kKinds[] = {"chat", "completion", "response"};  // by ApiKind
  const char* kind = kKinds[static_cast<size_t>(a.request.kind)];
  const double first = s.tokens ? seconds_between(a.arrived, s.first_token) : 0.;
  const double whole = seconds_between(a.arrived, Clock::now());
  char times[96];
  std::snprintf(times, sizeof times, "first token after %.3f s, whole after %.3f s: ", first, whole);
  log_.write(a.exchange->id(),
             std::string(kind) + ' ' + std::to_string(a.answer->prompt_tokens()) + " tokens in, " +
                 std::to_string(a.answer->completion_tokens()) + " out, " + times + how,
             {{"kind", kind},
              {"prompt_tokens", a.answer->prompt_tokens()},
              {"completion_tokens", a.answer->completion_tokens()},
              {"first_token_seconds", first},
              {"seconds", whole},
              {"end", how}});
}

void ApiServer::on_tick() {
  (void)has_memory_for([&] { check_time(); });
}

void ApiServer::check_time() {
  const auto now = Clock::now();
  const auto all = active_;
  for (const auto& active : all)
    if (options_.request_timeout > 0 && seconds_between(active->arrived, now) > options_.request_timeout)
      fail(active, timed_out(options_.request_timeout));
  const auto jobs = jobs_;
  for (const auto& job : jobs)
    if (options_.request_timeout > 0 && seconds_between(job->request.arrived, now) > options_.request_timeout)
      end_job(job, timed_out(options_.request_timeout));
  if (!drain_until_) return;
  if (now >= *drain_until_)
    for (const auto& active : all)
      if (active_.contains(active)) fail(active, ending());
  if (active_.empty()) http_->stop();
}

// What has not begun to run does not begin any more.
void ApiServer::on_signal() {
  if (drain_until_) return;
  drain_until_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(options_.drain_seconds));
  (void)has_memory_for([&] {
    log("", "asked to end: " + std::to_string(active_.size() + jobs_.size()) + " requests are open");
    const auto jobs = jobs_;
    for (const auto& job : jobs) end_job(job, ending());
    const auto all = active_;
    for (const auto& active : all)
      if (!active->started) fail(active, ending());
  });
}

}  // namespace sluice::apps
