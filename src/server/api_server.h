// The endpoints of the API. ApiServer dispatches requests and tracks every request until its answer is written.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "server/answers/answer.h"
#include "server/api_access.h"
#include "server/engine_thread.h"
#include "server/http/http.h"
#include "server/memory.h"
#include "server/metrics.h"
#include "server/prepare.h"
#include "server/response_store.h"
#include "server/server_log.h"
#include "server/setting_names.h"
#include "server/work_pool.h"

namespace sluice {

struct ApiOptions {
  AccessOptions access = {};  // /health, /version and the page need no key
  int64_t max_queue = 1024;   // limit of sequences that wait for the engine
  int64_t max_stored = 1024;  // limit of stored answers of /v1/responses
  // Seconds from the arrival of a request to the end of its answer; 0: no limit.
  double request_timeout = 0;
  double drain_seconds = 30;                    // grace period for running requests at shutdown
  int64_t max_answer_bytes = int64_t{1} << 30;  // limit of the log probabilities of all unfinished answers
  LogFormat log = LogFormat::kText;
  SettingNames names = {};
};

// All functions but the constructor run on the loop's thread.
class ApiServer final : public HttpService {
 public:
  // Throws std::system_error if no thread can be created. `log` must outlive the server.
  ApiServer(Engine& engine, const ServedModel& model, const ApiOptions& options, ServerLog& log);
  ~ApiServer() override;
  void attach(HttpServer& http);  // call it before the first request arrives

  void on_request(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;
  std::string error_body(int status, const std::string& message) override;
  void on_tick() override;
  void on_signal() override;
  void log(std::string_view request, const std::string& text) override;

 private:
  struct Active;  // a request in the queue or in the engine
  struct Job;     // a request that workers prepare
  using Exchange = std::shared_ptr<HttpExchange>;
  enum class Route : uint8_t {
    kChat,
    kCompletion,
    kResponse,
    kStoredResponse,
    kModels,
    kModel,
    kTokenize,
    kDetokenize,
    kHealth,
    kVersion,
    kMetrics,
    kOpenApi,
    kPage
  };
  struct Endpoint {
    const char *path, *methods;  // a path that ends with "/" must be followed by a name
    Route route;
  };
  static const Endpoint kEndpoints[];

  // api_routes.cc
  void route(HttpRequest request, const Exchange& exchange);
  std::optional<ApiError> check(const HttpRequest& request, const Endpoint** endpoint) const;
  void answer_now(Route route, const HttpRequest& request, const Exchange& exchange);
  void answer_model(const std::string& name, const Exchange& exchange);
  void answer_stored(const HttpRequest& request, const Exchange& exchange);
  void answer_metrics(const Exchange& exchange);
  void respond(const Exchange& exchange, HttpResponse response);
  void respond(const Exchange& exchange, const ApiError& error, const std::string& allowed = "");
  void refuse_for_memory(const Exchange& exchange) noexcept;

  // Prepares the request on workers (parsing and tokenizing, then compiling a grammar if needed) and continues on the loop.
  void answer_later(Route route, HttpRequest request, const Exchange& exchange);
  void prepare(const std::shared_ptr<Job>& job, std::stop_token stop) noexcept;    // on a worker
  void constrain(const std::shared_ptr<Job>& job, std::stop_token stop) noexcept;  // on a worker
  void come_back(const std::shared_ptr<Job>& job) noexcept;                        // on a worker
  void take_back(const std::shared_ptr<Job>& job);
  void end_job(const std::shared_ptr<Job>& job, const ApiError& error);
  bool is_shutting_down() const { return drain_until_.has_value(); }

  // api_active.cc
  void begin(const Exchange& exchange, Clock::time_point arrived, ServedModel::Prepared prepared);
  void enter(const std::shared_ptr<Active>& active, std::vector<QueuedSequence> sequences);
  void note_ignored(const std::string& id, const ApiRequest& request);
  void take(StepReport* report);
  void take_token(const std::shared_ptr<Active>& active, TicketToken token, Clock::time_point at);
  void push_token(const std::shared_ptr<Active>& active, TicketToken token, Clock::time_point at);
  bool is_small(int64_t work);  // the loop may do this work itself; if so, counts it as done
  void note_token(Active* active, size_t choice, Clock::time_point at);
  void note_end(Active* active, size_t choice, const GeneratedToken& token, Clock::time_point at);
  void token_taken(const std::shared_ptr<Active>& active, const TicketToken& token, Clock::time_point at);
  void send(Active* active);
  void complete(const std::shared_ptr<Active>& active);
  void finish(const std::shared_ptr<Active>& active, std::string rest);
  void fail(const std::shared_ptr<Active>& active, const ApiError& error);
  void fail_for_memory(const std::shared_ptr<Active>& active) noexcept;
  void abandon(const std::shared_ptr<Active>& active, ClientLoss how) noexcept;
  void check_time();
  void bound_answers();
  void forget(const std::shared_ptr<Active>& active);  // also cancels its sequences
  void forget_surely(const std::shared_ptr<Active>& active) noexcept;
  void destroy(Active* active) noexcept;
  void log_end(const Active& active, const std::string& how);
  // Runs `work` on a worker, which owns the answer until `work` ends; then runs `then` on the loop.
  void send_away(const std::shared_ptr<Active>& active, std::function<void()> work,
                 std::function<void()> then);
  void take_home(const std::shared_ptr<Active>& active, bool done,
                 const std::function<void()>& then) noexcept;
  // adds the tokens that arrived while a worker owned the answer
  void go_on(const std::shared_ptr<Active>& active);
  template <class Work>
  void post(const Work& work) noexcept {  // runs `work` on the loop; copying `work` must not throw
    surely([&] { http_->post(work); });
  }

  const ServedModel& model_;
  ApiOptions options_;
  int64_t created_;  // seconds since 1970
  ServerLog& log_;
  const Access access_;
  const std::shared_ptr<const std::string> openapi_;
  HttpServer* http_ = nullptr;
  ServeMetrics metrics_;
  Ticket next_ticket_ = 1;
  std::unordered_set<std::shared_ptr<Job>> jobs_;
  std::optional<Clock::time_point> drain_until_;
  ResponseStore responses_;
  std::unordered_set<std::string> ignored_;  // fields that the log has already reported
  std::unordered_map<Ticket, std::shared_ptr<Active>> by_ticket_;
  std::unordered_set<std::shared_ptr<Active>> active_;
  std::vector<std::shared_ptr<Active>> touched_;  // requests that got tokens in the current step
  bool draft_fault_logged_ = false;
  int64_t work_ = 0;  // scores that the loop has written since the last step or the last result of a worker
  // The members below are destroyed first, because their threads post work that uses the members above.
  EngineThread engine_;
  WorkPool answer_workers_;  // for large parts of answers
  WorkPool slow_workers_;    // for large bodies and grammars, so that small requests do not wait for them
  WorkPool workers_;
};

}  // namespace sluice
