// The endpoints: which request goes where, and what becomes of it until its answer is written.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "apps/serve/api_answer.h"
#include "apps/serve/engine_thread.h"
#include "apps/serve/http.h"
#include "apps/serve/metrics.h"
#include "apps/serve/prepare.h"
#include "apps/serve/response_store.h"
#include "apps/serve/server_log.h"
#include "apps/serve/work_pool.h"

namespace sluice::apps {

struct ApiOptions {
  std::vector<std::string> api_keys =
      {};  // one of them is wanted, except for /health, /version and the page; none: none is
  int64_t max_queue = 1024;    // sequences that wait for the engine
  int64_t max_stored = 1024;   // answers of /v1/responses
  double request_timeout = 0;  // seconds from a request to the end of its answer; 0: no bound
  double drain_seconds = 30;   // for what runs when the server is asked to end
  LogFormat log = LogFormat::kText;
};

// All on the loop's thread, but for the constructor.
class ApiServer final : public HttpService {
 public:
  ApiServer(Engine& engine, const ServedModel& model, const ApiOptions& options);
  ~ApiServer() override;
  void attach(HttpServer& http);  // before anything arrives

  void on_request(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;
  std::string error_body(int status, const std::string& message) override;
  void on_tick() override;
  void on_signal() override;
  void log(std::string_view request, const std::string& text) override;

 private:
  struct Active;  // a request in the queue or in the engine
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
    const char *path, *methods;  // a path that ends with "/" has a name behind it
    Route route;
  };
  static const Endpoint kEndpoints[];

  std::optional<ApiError> check(const HttpRequest& request, const Endpoint** endpoint) const;
  bool authorized(const HttpRequest& request) const;
  void answer_now(Route route, const HttpRequest& request, const Exchange& exchange);
  void answer_model(const std::string& name, const Exchange& exchange);
  void answer_stored(const HttpRequest& request, const Exchange& exchange);
  void answer_later(Route route, HttpRequest request, Exchange exchange);
  void respond(const Exchange& exchange, HttpResponse response);
  void respond(const Exchange& exchange, const ApiError& error, const std::string& allowed = "");

  void begin(ServedModel::Prepared prepared, Exchange exchange, Clock::time_point arrived);
  void note_ignored(const std::string& id, const ApiRequest& request);
  void take(const StepReport& report);
  void take_token(const TicketToken& token, Clock::time_point at);
  void send(Active* active, const std::string& events);
  void complete(const std::shared_ptr<Active>& active);
  void fail(const std::shared_ptr<Active>& active, const ApiError& error);
  void abandon(const std::shared_ptr<Active>& active, const std::string& why);
  void forget(const std::shared_ptr<Active>& active);  // and cancels what is left of it
  void log_end(const Active& active, const std::string& how);

  const ServedModel& model_;
  ApiOptions options_;
  int64_t created_;  // seconds since 1970
  ServerLog log_;
  HttpServer* http_ = nullptr;
  ServeMetrics metrics_;
  Ticket next_ticket_ = 1;
  int64_t preparing_ = 0;
  std::optional<Clock::time_point> drain_until_;
  ResponseStore responses_;
  std::unordered_set<std::string> ignored_;  // fields of which the log has told
  std::unordered_map<Ticket, std::shared_ptr<Active>> by_ticket_;
  std::unordered_set<std::shared_ptr<Active>> active_;
  EngineThread engine_;  // these two end first: what they do comes back to the above
  WorkPool workers_;
};

}  // namespace sluice::apps
