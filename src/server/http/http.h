// A single-threaded HTTP/1.1 server for JSON and event streams. This header does not depend on Boost, which the implementation uses.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/setting_names.h"

namespace sluice {

using Clock = std::chrono::steady_clock;

struct HttpRequest {
  std::string method, path;  // the path without its query
  std::string query;         // the part after '?'
  std::string host;          // the Host header, with its port if given; empty: no header
  std::string origin, asked_method, asked_headers;  // of cross-origin requests and their preflights
  std::string content_type, content_encoding, authorization;
  std::string id;  // the client's x-request-id if usable, else a new id
  std::string body;
  // While a copy of this pointer exists, the body counts towards HttpOptions::max_pending_bytes.
  std::shared_ptr<const void> counted;
  Clock::time_point arrived;  // when the last byte arrived
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  HttpHeaders headers = {};
  // if set, the body, of which several answers share one copy
  std::shared_ptr<const std::string> shared = {};
  std::string_view text() const { return shared ? *shared : body; }
};

// Why an answer cannot reach its client any more.
enum class ClientLoss : uint8_t {
  kClosed,    // the client closed the connection
  kTooSlow,   // the client read a stream too slowly, or read nothing for HttpOptions::write_timeout
  kTooLarge,  // unread answers exceeded HttpOptions::max_pending_bytes in total, and this one was the largest
  kNoMemory,  // memory for the answer ran out
};

std::string text(ClientLoss how, const SettingNames& names);  // for the log

class HttpConnection;

// The answer to one request: call either respond(), or begin_stream(), then write() any number of times, then end(). Once the client is
// lost, the functions do nothing. Call them on the loop's thread. If one throws std::bad_alloc, only drop() may be called after it.
class HttpExchange {
 public:
  HttpExchange(std::weak_ptr<HttpConnection> connection, std::string id)
      : connection_(std::move(connection)), id_(std::move(id)) {}
  const std::string& id() const { return id_; }
  // Whether the client is still connected and its answer is incomplete.
  bool waits() const { return connection() != nullptr; }
  void respond(HttpResponse response);
  void begin_stream(const HttpResponse& head);  // the body of `head` must be empty
  // Call it once per step with all bytes of the step. A client may fall behind by the largest write and by HttpOptions::max_output_bytes.
  void write(std::string bytes);
  void end();
  void drop() noexcept;  // closes the connection without an answer
  // Called once if the client is lost before the end. It must not throw.
  std::function<void(ClientLoss)> on_loss = {};
  HttpHeaders headers = {};  // added to every answer

 private:
  std::shared_ptr<HttpConnection> connection() const;
  std::weak_ptr<HttpConnection> connection_;
  std::string id_;
};

// The interface that the HTTP server calls, always on the loop's thread. The functions must not block. Only on_request() and error_body() may
// throw, and only std::bad_alloc.
class HttpService {
 public:
  virtual ~HttpService() = default;
  virtual void on_request(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;
  // Returns the body of an error that the HTTP server itself reports, such as for an invalid request.
  virtual std::string error_body(int status, const std::string& message) = 0;
  virtual void on_tick() = 0;    // several times a second
  virtual void on_signal() = 0;  // on the first SIGINT or SIGTERM; the second one ends the process
  // `request`: the request's id, or empty
  virtual void log(std::string_view request, const std::string& text) = 0;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free port
  int64_t max_body_bytes = 8 << 20;
  int64_t max_header_bytes = 16 << 10;
  // Limits two totals: the request bodies that are not parsed yet, and the answers that are not sent yet.
  int64_t max_pending_bytes = int64_t{1} << 30;
  // A client of a stream is dropped if, apart from the largest write, more bytes than this stay unread for a second.
  int64_t max_output_bytes = 1 << 20;
  int64_t max_connections = 10000;
  double read_timeout = 30;   // seconds to receive a whole request
  double write_timeout = 60;  // seconds in which no byte of an answer can be sent
  double idle_timeout = 120;  // seconds between requests
  SettingNames names = {};
};

class HttpServer {
 public:
  // Whether the address can be bound now. Called before a model is loaded, which may take minutes. Errors as of listen().
  static Status check(const HttpOptions& options);
  // Binds the address and starts to listen. kIo: names the address and the system's reason.
  static Result<std::unique_ptr<HttpServer>> listen(const HttpOptions& options, HttpService& service);
  virtual ~HttpServer() = default;
  virtual std::string url() const = 0;
  virtual int64_t connections() const = 0;
  virtual void run() = 0;                             // returns after stop()
  virtual void post(std::function<void()> work) = 0;  // runs `work` on the loop's thread; thread-safe
  // call it on the loop's thread; for at most one second, queued output is still sent
  virtual void stop() = 0;
};

}  // namespace sluice
