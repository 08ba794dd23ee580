// Dispatches requests to endpoints. Requests without the engine and without large bodies are answered here; api_server.cc handles the others.
#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "server/api_errors.h"
#include "server/api_server.h"
#include "server/memory.h"
#include "server/page.h"
#include "server/server_text.h"

namespace sluice {

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

void ApiServer::on_request(HttpRequest request, Exchange exchange) {
  if (!has_memory_for([&] { route(std::move(request), exchange); })) refuse_for_memory(exchange);
}

void ApiServer::route(HttpRequest request, const Exchange& exchange) {
  exchange->headers = access_.headers_for(request);
  if (const auto error = access_.check_host(request)) return respond(exchange, *error);
  if (auto answer = access_.preflight(request)) return respond(exchange, std::move(*answer));
  const Endpoint* endpoint = nullptr;
  if (const auto error = check(request, &endpoint))
    return respond(exchange, *error, error->status == 405 ? endpoint->methods : "");
  if (request.method != "POST") return answer_now(endpoint->route, request, exchange);
  if (is_shutting_down()) return respond(exchange, shutting_down());
  if (std::ssize(jobs_) >= engine_.places())
    return respond(exchange, overloaded(options_.max_queue, options_.names));
  answer_later(endpoint->route, std::move(request), exchange);
}

std::optional<ApiError> ApiServer::check(const HttpRequest& request, const Endpoint** endpoint) const {
  const auto named = [&](const Endpoint& e) {
    const std::string_view path = e.path, requested = request.path;
    if (!path.ends_with('/') || path == "/") return requested == path;
    // In other servers these are routes of their own, so "input_tokens" and "compact" are not ids of responses.
    if (requested == "/v1/responses/input_tokens" || requested == "/v1/responses/compact") return false;
    // A name must follow the path. Only names of models may contain slashes.
    return requested.size() > path.size() && requested.starts_with(path) &&
           (e.route == Route::kModel || requested.find('/', path.size()) == std::string_view::npos);
  };
  *endpoint = std::find_if(std::begin(kEndpoints), std::end(kEndpoints), named);
  const bool known = *endpoint != std::end(kEndpoints);
  constexpr Route kOpen[] = {Route::kHealth, Route::kVersion, Route::kPage};
  const bool open =
      known && std::find(std::begin(kOpen), std::end(kOpen), (*endpoint)->route) != std::end(kOpen);
  if (!open && !access_.authorized(request))
    return ApiError{.status = 401,
                    .message = std::string("Authorization: wanted 'Bearer' and one of the keys of ") +
                               options_.names.api_keys + ", found none of them",
                    .type = "authentication_error",
                    .code = "invalid_api_key"};
  if (!known)
    return ApiError{.status = 404,
                    .message = "path: wanted an endpoint of the API (/openapi.json lists them), found " +
                               shortened(request.path),
                    .code = "unknown_url"};
  if (!lists((*endpoint)->methods, request.method))
    return ApiError{.status = 405,
                    .message = shortened(request.path) + ": wanted " + (*endpoint)->methods + ", found " +
                               shortened(request.method),
                    .code = "method_not_allowed"};
  // Parameters such as charset=utf-8 may follow the type.
  std::string type = lower(request.content_type.substr(0, request.content_type.find(';')));
  type.erase(type.find_last_not_of(" \t") + 1);
  if (request.method == "POST" && type != "application/json")
    return ApiError{
        .status = 415,
        .message = "Content-Type: wanted application/json, found '" + shortened(request.content_type) + "'",
        .code = "unsupported_media_type"};
  const std::string coding = lower(request.content_encoding);
  if (!coding.empty() && coding != "identity")
    return ApiError{
        .status = 415,
        .message = "Content-Encoding: wanted identity, found '" + shortened(request.content_encoding) + "'",
        .code = "unsupported_media_type"};
  return {};
}

void ApiServer::respond(const Exchange& exchange, HttpResponse response) {
  ++metrics_.answers[response.status];
  exchange->respond(std::move(response));
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

// Answers with an error. If there is no memory even for the error, the connection is closed.
void ApiServer::refuse_for_memory(const Exchange& exchange) noexcept {
  if (!has_memory_for([&] { respond(exchange, no_memory()); })) exchange->drop();
}

void ApiServer::answer_now(Route route, const HttpRequest& request, const Exchange& exchange) {
  if (route == Route::kPage) return respond(exchange, page_response(request.path));
  if (route == Route::kVersion) return respond(exchange, HttpResponse{.body = version_json()});
  if (route == Route::kStoredResponse) return answer_stored(request, exchange);
  if (route == Route::kModel) return answer_model(name_in(request.path, "/v1/models/"), exchange);
  if (route == Route::kModels)
    return respond(exchange,
                   HttpResponse{.body = models_json(model_.names(), created_, model_.max_model_len())});
  if (route == Route::kOpenApi) return respond(exchange, HttpResponse{.shared = openapi_});
  if (route == Route::kMetrics) return answer_metrics(exchange);
  const bool healthy = engine_.load().healthy;
  if (is_shutting_down() || !healthy)
    return respond(exchange, HttpResponse{.status = 503,
                                          .body = status_json(is_shutting_down() ? "shutting down"
                                                                                 : "the last step failed")});
  respond(exchange, HttpResponse{.body = status_json("ok")});
}

void ApiServer::answer_metrics(const Exchange& exchange) {
  metrics_.log_lines_dropped = log_.dropped();
  respond(exchange, HttpResponse{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                                 .body = metrics_text(metrics_, engine_.load(), http_->connections(),
                                                      model_.names().front())});
}

void ApiServer::answer_model(const std::string& name, const Exchange& exchange) {
  if (name.empty() || !model_.serves(name)) return respond(exchange, unknown_model(name));
  respond(exchange, HttpResponse{.body = model_json(name, created_, model_.max_model_len())});
}

// The value of the parameter `name` in a query.
static std::optional<std::string_view> query_value(std::string_view query, std::string_view name) {
  for (size_t at = 0; at < query.size();) {
    const size_t end = std::min(query.find('&', at), query.size());
    const std::string_view one = query.substr(at, end - at);
    if (one.starts_with(name) && one.substr(name.size()).starts_with('=')) return one.substr(name.size() + 1);
    at = end + 1;
  }
  return {};
}

void ApiServer::answer_stored(const HttpRequest& request, const Exchange& exchange) {
  const std::string id = name_in(request.path, "/v1/responses/");
  const auto found = responses_.find(id);
  if (!found)
    return respond(exchange, ApiError{.status = 404,
                                      .message = "response: wanted the id of a stored response, found '" +
                                                 shortened(id) + "'",
                                      .code = "response_not_found"});
  for (const char* field : {"stream", "starting_after"})
    if (const auto value = query_value(request.query, field); value && *value != "false")
      return respond(exchange,
                     ApiError{.message = "query: " + std::string(field) +
                                         ": wanted none, since stored responses are not streamed, found '" +
                                         shortened(std::string(*value)) + "'",
                              .param = field});
  if (request.method == "GET") return respond(exchange, HttpResponse{.shared = {found, &found->json}});
  responses_.erase(id);
  respond(exchange, HttpResponse{.body = deleted_json(id)});
}

}  // namespace sluice
