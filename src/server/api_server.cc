#include "server/api_server.h"

#include <algorithm>
#include <ctime>
#include <utility>
#include <variant>

#include "server/api_active.h"
#include "server/api_errors.h"
#include "server/memory.h"
#include "server/openapi.h"
#include "server/server_text.h"

namespace sluice {
namespace {

constexpr int kWorkers = 2;
constexpr int64_t kStoredBytes = 64 << 20;  // limit of all stored responses together
constexpr int64_t kSmallBody = 64 << 10;    // a body of at most this size is parsed in about a millisecond

}  // namespace

struct ApiServer::Job {
  Job(Route r, HttpRequest requested, Exchange e)
      : route(r), request(std::move(requested)), exchange(std::move(e)) {}
  void read(const ServedModel& model, ResponseStore& responses);
  template <class F>
  void attempt(F&& f) noexcept;
  const Route route;
  HttpRequest request;
  const Exchange exchange;
  std::stop_source stop;
  // The result: an error, an answer's JSON, or input for the engine. monostate: memory ran out, or the client disconnected.
  std::variant<std::monostate, ApiError, std::string, ServedModel::Prepared> outcome;
};

// Runs `f`. If it throws, only this request fails.
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
    if (result.ok())
      outcome = std::move(result).value();
    else
      outcome = result.error();
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
      access_(options.access, options.names),
      openapi_(std::make_shared<const std::string>(openapi_json(model.limits()))),
      responses_(options.max_stored, kStoredBytes),
      engine_(engine, options.max_queue,
              [this](StepReport report) {
                std::shared_ptr<StepReport> shared;
                surely([&] { shared = std::make_shared<StepReport>(std::move(report)); });
                post([this, shared] { take(shared.get()); });
              }),
      answer_workers_(kWorkers),
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
  post([this, job] { take_back(job); });
}

void ApiServer::take_back(const std::shared_ptr<Job>& job) {
  if (jobs_.erase(job) == 0) return;  // already ended
  const Exchange& exchange = job->exchange;
  exchange->on_loss = {};
  const auto go_on = [&] {
    if (!exchange->waits()) return log(exchange->id(), "client disconnected before the request started");
    if (const auto* error = std::get_if<ApiError>(&job->outcome)) return respond(exchange, *error);
    if (auto* answer = std::get_if<std::string>(&job->outcome))
      return respond(exchange, HttpResponse{.body = std::move(*answer)});
    if (auto* prepared = std::get_if<ServedModel::Prepared>(&job->outcome))
      return begin(exchange, job->request.arrived, std::move(*prepared));
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

void ApiServer::on_tick() {
  (void)has_memory_for([&] { check_time(); });
}

void ApiServer::check_time() {
  const auto now = Clock::now();
  const auto all = active_;
  for (const auto& active : all)
    if (options_.request_timeout > 0 && seconds_between(active->arrived, now) > options_.request_timeout)
      fail(active, timed_out(options_.request_timeout, options_.names));
  const auto jobs = jobs_;
  for (const auto& job : jobs)
    if (options_.request_timeout > 0 && seconds_between(job->request.arrived, now) > options_.request_timeout)
      end_job(job, timed_out(options_.request_timeout, options_.names));
  bound_answers();
  if (!drain_until_) return;
  if (now >= *drain_until_)
    for (const auto& active : all)
      if (active_.contains(active)) fail(active, shutting_down());
  if (active_.empty()) http_->stop();
}

// Requests that have not started are rejected; running requests get the grace period.
void ApiServer::on_signal() {
  if (drain_until_) return;
  drain_until_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(options_.drain_seconds));
  (void)has_memory_for([&] {
    log("", "shutting down: " + std::to_string(active_.size() + jobs_.size()) + " open requests");
    const auto jobs = jobs_;
    for (const auto& job : jobs) end_job(job, shutting_down());
    const auto all = active_;
    for (const auto& active : all)
      if (!active->started) fail(active, shutting_down());
  });
}

}  // namespace sluice
