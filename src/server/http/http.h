// A single-threaded HTTP/1.1 server for JSON and event streams. This header hides the library that implements it.
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
  // While this lives, the body counts towards HttpOptions::max_pending_bytes.
  std::shared_ptr<const void> counted;
  Clock::time_point arrived;  // when the last byte arrived
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  HttpHeaders headers = {};
  std::shared_ptr<const std::string> shared = {};  // if set, this is the body: answers share one copy
  std::string_view text() const { return shared ? *shared : body; }
};

// Why an answer lost its client.
enum class ClientLoss : uint8_t {
  kClosed,    // the client closed the connection
  kTooSlow,   // the client read a stream too slowly, or read nothing for HttpOptions::write_timeout
  kTooLarge,  // its unread answer was the largest when all together exceeded HttpOptions::max_pending_bytes
  kNoMemory,  // memory for the answer ran out
};

std::string text(ClientLoss how, const SettingNames& names);  // for the log

class HttpConnection;

// The answer to one request: call respond(), or begin_stream(), write() and end(). The functions do nothing once the client is lost. All
// of them run on the loop's thread. They throw std::bad_alloc if memory is exhausted; then only drop() may follow.
class HttpExchange {
 public:
  HttpExchange(std::weak_ptr<HttpConnection> connection, std::string id)
      : connection_(std::move(connection)), id_(std::move(id)) {}
  const std::string& id() const { return id_; }
  // The client is connected and its answer incomplete.
  bool waits() const { return connection() != nullptr; }
  void respond(HttpResponse response);
  void begin_stream(const HttpResponse& head);  // the body of `head` must be empty
  // Takes all bytes of one step at once. A client may fall behind by one such write; see HttpOptions::max_output_bytes for the rest.
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

// The interface that the HTTP server calls. All functions run on the loop's thread and must not block. Only on_request() and error_body()
// may throw, and only std::bad_alloc.
class HttpService {
 public:
  virtual ~HttpService() = default;
  virtual void on_request(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;
  // Returns the body of an answer to bytes that are no valid request.
  virtual std::string error_body(int status, const std::string& message) = 0;
  virtual void on_tick() = 0;    // several times a second
  virtual void on_signal() = 0;  // on the first SIGINT or SIGTERM; the second one ends the process
  // `request`: the request's id, or empty
  virtual void log(std::string_view request, const std::string& text) = 0;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any
  int64_t max_body_bytes = 8 << 20;
  int64_t max_header_bytes = 16 << 10;
  // Limit of all request bodies until they are parsed; and separately of all answers until they are sent.
  int64_t max_pending_bytes = int64_t{1} << 30;
  // Bytes of a stream that may stay unread for a second, besides the largest write.
  int64_t max_output_bytes = 1 << 20;
  int64_t max_connections = 10000;
  double read_timeout = 30;   // seconds to receive a whole request
  double write_timeout = 60;  // seconds without any byte sent
  double idle_timeout = 120;  // seconds between requests
  SettingNames names = {};
};

class HttpServer {
 public:
  // Binds the address and starts to listen. kIo: names the address and the system's reason.
  static Result<std::unique_ptr<HttpServer>> listen(const HttpOptions& options, HttpService& service);
  virtual ~HttpServer() = default;
  virtual std::string url() const = 0;
  virtual int64_t connections() const = 0;
  virtual void run() = 0;                             // returns after stop()
  virtual void post(std::function<void()> work) = 0;  // runs `work` on the loop's thread; thread-safe
  virtual void stop() = 0;  // on the loop's thread; queued output gets at most one more second
};

}  // namespace sluice
