// HTTP/1.1 for a server of JSON and event streams, on one thread. Nothing of the library behind it shows here.
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

namespace sluice {

using Clock = std::chrono::steady_clock;

struct HttpRequest {
  std::string method, path;  // the path without its query
  std::string query;         // behind its '?'
  std::string host;  // as the client names this server, with a port if it says one; empty: it does not
  std::string origin, asked_method, asked_headers;  // of a page from elsewhere: what it asks before it sends
  std::string content_type, content_encoding, authorization;
  std::string id;  // the client's x-request-id where it sent a usable one, else a new one
  std::string body;
  std::shared_ptr<const void>
      counted;                // as long as it lives, the body counts to HttpOptions::max_pending_bytes
  Clock::time_point arrived;  // when its last byte was there
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  HttpHeaders headers = {};
  std::shared_ptr<const std::string> shared = {};  // the body, where it is: no answer has a copy of its own
  std::string_view text() const { return shared ? *shared : body; }
};

// Why nobody waits for an answer any more.
enum class ClientLoss : uint8_t {
  kClosed,    // the client closed the connection
  kTooSlow,   // it read less of a stream than it must, or nothing for HttpOptions::write_timeout
  kTooLarge,  // it left the most of more than HttpOptions::max_pending_bytes
  kNoMemory,  // the system had none for the answer
};

const char* text(ClientLoss how);  // for the log

class HttpConnection;

// One request's answer: respond(); or begin_stream(), write() and end(). Once the client is lost they do nothing. All on the loop's
// thread. Where the system has no memory for them they throw std::bad_alloc, and then drop() is left.
class HttpExchange {
 public:
  HttpExchange(std::weak_ptr<HttpConnection> connection, std::string id)
      : connection_(std::move(connection)), id_(std::move(id)) {}
  const std::string& id() const { return id_; }
  bool waits() const { return connection() != nullptr; }  // the client is there, and the answer not whole
  void respond(HttpResponse response);
  void begin_stream(const HttpResponse& head);  // whose body is empty
  // All that one step gives: a client may be slow with it, as long as it is not slow with much more.
  void write(std::string bytes);
  void end();
  void drop() noexcept;  // closes the connection, without a word
  // Called once, if the client is lost before the end. It must not throw.
  std::function<void(ClientLoss)> on_loss = {};
  HttpHeaders headers = {};  // that the answer has in any case

 private:
  std::shared_ptr<HttpConnection> connection() const;
  std::weak_ptr<HttpConnection> connection_;
  std::string id_;
};

// What a server is for. All on the loop's thread, none of them may wait. Only on_request() and error_body() may throw, std::bad_alloc.
class HttpService {
 public:
  virtual ~HttpService() = default;
  virtual void on_request(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;
  // The body of an answer to what is no request.
  virtual std::string error_body(int status, const std::string& message) = 0;
  virtual void on_tick() = 0;    // a few times a second
  virtual void on_signal() = 0;  // the first SIGINT or SIGTERM; the second ends the process
  virtual void log(std::string_view request, const std::string& text) = 0;  // `request`: its id, or empty
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any
  int64_t max_body_bytes = 8 << 20;
  int64_t max_header_bytes = 16 << 10;
  // Of all bodies together, until they are read and understood; and of all answers together, until they are sent.
  int64_t max_pending_bytes = int64_t{1} << 30;
  int64_t max_output_bytes =
      1 << 20;  // of a stream that its reader leaves unread for a second, beside one step's
  int64_t max_connections = 10000;
  double read_timeout = 30;   // seconds for a whole request
  double write_timeout = 60;  // seconds in which a reader takes nothing
  double idle_timeout = 120;  // seconds between requests
};

class HttpServer {
 public:
  // Listens from here on. kIo: the address, and why it cannot be had.
  static Result<std::unique_ptr<HttpServer>> listen(const HttpOptions& options, HttpService& service);
  virtual ~HttpServer() = default;
  virtual std::string url() const = 0;
  virtual int64_t connections() const = 0;
  virtual void run() = 0;                             // until stop()
  virtual void post(std::function<void()> work) = 0;  // to the loop's thread, from any
  virtual void stop() = 0;  // on the loop's thread; what is written leaves within a second, or not at all
};

}  // namespace sluice
