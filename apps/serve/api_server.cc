#include "apps/serve/api_server.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "apps/serve/openapi.h"
#include "apps/serve/page.h"
#include "apps/serve/server_text.h"
#include "base/printable.h"

namespace sluice::apps {
namespace {

constexpr int kWorkers = 2;
constexpr int64_t kStoredBytes = 64 << 20;  // of answers that are kept
constexpr size_t kIgnoredMax = 256;         // names of fields that are remembered

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

ApiError overloaded(int64_t most) {
  return {.status = 429,
          .message = "queue: wanted at most " + std::to_string(most) +
                     " waiting sequences (--max-queue), found it full; try again later",
          .type = "rate_limit_error",
          .code = "queue_full"};
}

// No waiting helps.
ApiError too_many(int64_t found, int64_t most) {
  return {
      .message = "n: wanted at most " + std::to_string(most) +
                 " answers to all prompts, what the engine and its queue have places for (--max-num-seqs, " +
                 "--max-queue), found " + std::to_string(found),
      .param = "n"};
}

ApiError ending() {
  return {.status = 503, .message = "the server is ending", .type = "server_error", .code = "shutting_down"};
}

}  // namespace

struct ApiServer::Active {
  Active(const Harmony& harmony, ServedModel::Prepared p, Exchange e, AnswerHead head)
      : exchange(std::move(e)),
        request(std::move(p.request)),
        answer(Answer::make(harmony, request, std::move(head), p.prompts, p.forced)) {}
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
  Clock::time_point arrived;
  bool started = false;    // at least one sequence has entered the engine
  bool streaming = false;  // the head of the stream is written
};

const ApiServer::Endpoint ApiServer::kEndpoints[] = {
    {"/v1/chat/completions", "POST", Route::kChat},
    {"/v1/completions", "POST", Route::kCompletion},
    {"/v1/responses", "POST", Route::kResponse},
    {"/v1/responses/", "GET, DELETE", Route::kStoredResponse},
    {"/v1/models", "GET", Route::kModels},
    {"/v1/models/", "GET", Route::kModel},
    {"/tokenize", "POST", Route::kTokenize},
    {"/detokenize", "POST", Route::kDetokenize},
    {"/health", "GET", Route::kHealth},
    {"/version", "GET", Route::kVersion},
    {"/metrics", "GET", Route::kMetrics},
    {"/openapi.json", "GET", Route::kOpenApi},
    {"/", "GET", Route::kPage},
    {"/page.css", "GET", Route::kPage},
    {"/page.js", "GET", Route::kPage}};

ApiServer::ApiServer(Engine& engine, const ServedModel& model, const ApiOptions& options)
    : model_(model),
      options_(options),
      created_(std::time(nullptr)),
      log_(options.log),
      responses_(options.max_stored, kStoredBytes),
      engine_(
          engine, options.max_queue,
          [this](StepReport report) { http_->post([this, report = std::move(report)] { take(report); }); }),
      workers_(kWorkers) {}

ApiServer::~ApiServer() = default;

void ApiServer::attach(HttpServer& http) { http_ = &http; }

std::string ApiServer::error_body(int status, const std::string& message) {
  ++metrics_.answers[status];
  return error_json({.status = status, .message = message});
}

void ApiServer::log(std::string_view request, const std::string& text) { log_.write(request, text); }

bool ApiServer::authorized(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return true;
  constexpr std::string_view kScheme = "bearer ";
  const std::string& header = request.authorization;
  if (header.size() < kScheme.size() || lower(header.substr(0, kScheme.size())) != kScheme) return false;
  bool known = false;  // all are compared, whichever it is
  for (const std::string& key : options_.api_keys)
    known |= same_secret(key, std::string_view(header).substr(kScheme.size()));
  return known;
}

std::optional<ApiError> ApiServer::check(const HttpRequest& request, const Endpoint** endpoint) const {
  const auto named = [&](const Endpoint& e) {
    const std::string_view path = e.path;
    return path.ends_with('/') && path != "/" ? request.path.starts_with(path) : request.path == path;
  };
  *endpoint = std::find_if(std::begin(kEndpoints), std::end(kEndpoints), named);
  const bool known = *endpoint != std::end(kEndpoints);
  constexpr Route kOpen[] = {Route::kHealth, Route::kVersion, Route::kPage};
  const bool open =
      known && std::find(std::begin(kOpen), std::end(kOpen), (*endpoint)->route) != std::end(kOpen);
  if (!open && !authorized(request))
    return ApiError{
        .status = 401,
        .message = "Authorization: wanted 'Bearer' and one of the keys of --api-key, found none of them",
        .type = "authentication_error",
        .code = "invalid_api_key"};
  if (!known)
    return ApiError{.status = 404,
                    .message = "path: wanted one of the API, found " + shortened(request.path),
                    .code = "unknown_url"};
  if (!lists((*endpoint)->methods, request.method))
    return ApiError{.status = 405,
                    .message = shortened(request.path) + ": wanted " + (*endpoint)->methods + ", found " +
                               shortened(request.method),
                    .code = "method_not_allowed"};
  const bool is_json = lower(request.content_type).starts_with("application/json");
  if (request.method == "POST" && !is_json)
    return ApiError{
        .status = 415,
        .message = "Content-Type: wanted application/json, found '" + shortened(request.content_type) + "'",
        .code = "unsupported_media_type"};
  return {};
}

void ApiServer::on_request(HttpRequest request, Exchange exchange) {
  const Endpoint* endpoint = nullptr;
  if (const auto error = check(request, &endpoint))
    return respond(exchange, *error, error->status == 405 ? endpoint->methods : "");
  if (request.method != "POST") return answer_now(endpoint->route, request, exchange);
  if (drain_until_) return respond(exchange, ending());
  if (preparing_ >= engine_.places()) return respond(exchange, overloaded(options_.max_queue));
  answer_later(endpoint->route, std::move(request), std::move(exchange));
}

void ApiServer::respond(const Exchange& exchange, HttpResponse response) {
  ++metrics_.answers[response.status];
  exchange->respond(response);
}

void ApiServer::respond(const Exchange& exchange, const ApiError& error, const std::string& allowed) {
  log_.write(exchange->id(), "refused with " + std::to_string(error.status) + ": " + error.message,
             {{"status", int64_t{error.status}}});
  HttpResponse response{.status = error.status, .body = error_json(error)};
  if (error.status == 429) response.headers.emplace_back("Retry-After", "1");
  if (!allowed.empty()) response.headers.emplace_back("Allow", allowed);
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  respond(exchange, std::move(response));
}

void ApiServer::answer_now(Route route, const HttpRequest& request, const Exchange& exchange) {
  if (route == Route::kPage) return respond(exchange, page_response(request.path));
  if (route == Route::kVersion) return respond(exchange, HttpResponse{.body = version_json()});
  if (route == Route::kStoredResponse) return answer_stored(request, exchange);
  if (route == Route::kModel) return answer_model(name_in(request.path, "/v1/models/"), exchange);
  if (route == Route::kModels)
    return respond(exchange,
                   HttpResponse{.body = models_json(model_.names(), created_, model_.max_model_len())});
  if (route == Route::kOpenApi) return respond(exchange, HttpResponse{.body = openapi_json(model_.limits())});
  const EngineLoad load = engine_.load();
  if (route == Route::kMetrics)
    return respond(exchange, HttpResponse{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                                          .body = metrics_text(metrics_, load, http_->connections(),
                                                               model_.names().front())});
  if (drain_until_ || !load.healthy)
    return respond(
        exchange,
        HttpResponse{.status = 503, .body = status_json(drain_until_ ? "ending" : "the last step failed")});
  respond(exchange, HttpResponse{.body = status_json("ok")});
}

static ApiError unknown_model(const std::string& name) {
  return {.status = 404,
          .message = "model: wanted one that /v1/models lists, found '" + shortened(name) + "'",
          .param = "model",
          .code = "model_not_found"};
}

void ApiServer::answer_model(const std::string& name, const Exchange& exchange) {
  if (name.empty() || !model_.serves(name)) return respond(exchange, unknown_model(name));
  respond(exchange, HttpResponse{.body = model_json(name, created_, model_.max_model_len())});
}

void ApiServer::answer_stored(const HttpRequest& request, const Exchange& exchange) {
  const std::string id = name_in(request.path, "/v1/responses/");
  const auto found = responses_.find(id);
  if (!found)
    return respond(exchange,
                   ApiError{.status = 404,
                            .message = "response: wanted the id of one that is stored here, found '" +
                                       shortened(id) + "'",
                            .code = "response_not_found"});
  if (request.method == "GET") return respond(exchange, HttpResponse{.body = found->json});
  responses_.erase(id);
  respond(exchange, HttpResponse{.body = deleted_json(id)});
}

// Reads the body elsewhere and comes back.
void ApiServer::answer_later(Route route, HttpRequest request, Exchange exchange) {
  ++preparing_;
  workers_.submit([this, route, request = std::move(request), exchange = std::move(exchange)] {
    if (route == Route::kTokenize || route == Route::kDetokenize) {
      auto answer =
          route == Route::kTokenize ? model_.tokenize(request.body) : model_.detokenize(request.body);
      http_->post([this, exchange, answer = std::move(answer)] {
        --preparing_;
        if (const auto* error = std::get_if<ApiError>(&answer)) return respond(exchange, *error);
        respond(exchange, HttpResponse{.body = std::get<std::string>(answer)});
      });
      return;
    }
    const auto stored = [this](const std::string& id) { return responses_.find(id); };
    auto prepared = route == Route::kChat       ? model_.chat(request.body)
                    : route == Route::kResponse ? model_.response(request.body, stored)
                                                : model_.completion(request.body);
    http_->post([this, exchange, prepared = std::move(prepared), arrived = request.arrived]() mutable {
      --preparing_;
      if (const auto* error = std::get_if<ApiError>(&prepared)) return respond(exchange, *error);
      begin(std::get<ServedModel::Prepared>(std::move(prepared)), exchange, arrived);
    });
  });
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

void ApiServer::begin(ServedModel::Prepared prepared, Exchange exchange, Clock::time_point arrived) {
  if (!exchange->waits()) return log(exchange->id(), "left before it began");
  if (drain_until_) return respond(exchange, ending());
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
      model_.harmony(), std::move(prepared), exchange,
      AnswerHead{.id = exchange->id(),
                 .created = std::time(nullptr),
                 .model = request.model.empty() ? model_.names().front() : request.model,
                 .unique = random_name()});
  active->arrived = arrived;
  active->first_ticket = first;
  active->sequences.resize(sequences.size());
  for (const QueuedSequence& s : sequences) active->prompt_lengths.push_back(std::ssize(s.request.prompt));
  if (!engine_.submit(std::move(sequences))) return respond(exchange, overloaded(options_.max_queue));
  for (Ticket t = first; t < next_ticket_; ++t) by_ticket_[t] = active;
  active_.insert(active);
  exchange->on_loss = [this, weak = std::weak_ptr<Active>(active)](ClientLoss how) {
    if (const auto lost = weak.lock())
      abandon(lost, how == ClientLoss::kTooSlow ? "client too slow" : "client gone");
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
  for (const TicketToken& token : report.tokens) take_token(token, report.at);
  for (const TicketFault& fault : report.faults) {
    const auto found = by_ticket_.find(fault.ticket);
    if (found == by_ticket_.end()) continue;
    const std::shared_ptr<Active> active = found->second;
    const bool wrong_use = fault.status.code == Code::kInvalidArgument;
    fail(active, {.status = wrong_use ? 400 : 500,
                  .message = fault.status.message,
                  .type = wrong_use ? "invalid_request_error" : "server_error"});
  }
}

void ApiServer::take_token(const TicketToken& t, Clock::time_point at) {
  const auto found = by_ticket_.find(t.ticket);
  if (found == by_ticket_.end()) return;
  const std::shared_ptr<Active> active = found->second;
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
  std::string events;
  active->answer->push(choice, t.token, &events);
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
  send(active.get(), events);
  if (active->answer->done() && active_.contains(active)) complete(active);
}

void ApiServer::send(Active* active, const std::string& events) {
  if (!active->request.stream) return;
  if (!active->streaming) {
    active->streaming = true;
    ++metrics_.answers[200];
    active->exchange->begin_stream(
        {.content_type = "text/event-stream; charset=utf-8",
         .headers = {{"Cache-Control", "no-cache"},
                     {"X-Accel-Buffering", "no"}}});  // events pass proxies at once
  }
  active->exchange->write(events);
}

void ApiServer::complete(const std::shared_ptr<Active>& active) {
  const std::string rest = active->answer->finish();
  if (auto response = active->answer->stored(); response && !responses_.put(active->answer->id(), response))
    log(active->exchange->id(), "the response is larger than all that may be stored, and is not");
  active->exchange->on_loss = {};
  if (active->request.stream) {
    active->exchange->write(rest);
    active->exchange->end();
  } else {
    respond(active->exchange, HttpResponse{.body = rest});
  }
  log_end(*active, std::string(text(active->answer->finish_reason(0))));
  forget(active);
}

void ApiServer::fail(const std::shared_ptr<Active>& active, const ApiError& error) {
  active->exchange->on_loss = {};
  if (active->streaming) {
    active->exchange->write(active->answer->fail(error));
    active->exchange->end();
  } else {
    respond(active->exchange, error);
  }
  metrics_.finished["error"] += static_cast<int64_t>(active->sequences.size());
  log_end(*active, "error: " + error.message);
  forget(active);
}

void ApiServer::abandon(const std::shared_ptr<Active>& active, const std::string& why) {
  ++metrics_.clients_lost;
  for (const auto& s : active->sequences) metrics_.finished["abort"] += s.ended ? 0 : 1;
  log_end(*active, why);
  forget(active);
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
  const auto now = Clock::now();
  const auto all = active_;
  for (const auto& active : all)
    if (options_.request_timeout > 0 && seconds_between(active->arrived, now) > options_.request_timeout)
      fail(active, {.status = 504,
                    .message = "request: wanted an answer within " + number_text(options_.request_timeout) +
                               " seconds (--request-timeout), found none",
                    .type = "server_error",
                    .code = "timeout"});
  if (!drain_until_) return;
  if (now >= *drain_until_)
    for (const auto& active : all)
      if (active_.contains(active)) fail(active, ending());
  if (active_.empty() && preparing_ == 0) http_->stop();
}

void ApiServer::on_signal() {
  if (drain_until_) return;
  log("", "asked to end: " + std::to_string(active_.size()) + " requests are open");
  drain_until_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(options_.drain_seconds));
  const auto all = active_;
  for (const auto& active : all)
    if (!active->started) fail(active, ending());
}

}  // namespace sluice::apps
