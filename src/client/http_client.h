// An HTTP/1.1 client of one server. It runs many concurrent requests on one thread and delivers answers as they arrive. This header does not
// depend on Boost, which the implementation uses.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace sluice {

using Clock = std::chrono::steady_clock;
inline double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

struct ServerUrl {
  std::string host, port;
  std::string path;           // prefix of every request's path: "" or "/api"
  std::string place() const;  // such as "host:8000" or "[::1]:8000"
  std::string text() const;
};
// Parses "http://host:8000/path"; the default port is 80. kInvalidArgument: the URL has another form. For https the message says that TLS is
// not supported.
Result<ServerUrl> parse_url(std::string_view text);

struct ClientRequest {
  std::string method = "POST";
  std::string path;  // appended to ServerUrl::path
  std::string body = {};
  std::string api_key = {};  // empty: no Authorization header
  double timeout = 0;        // seconds; 0: ClientOptions::timeout
};

// Receives one answer. All functions run on the client's thread.
class AnswerReader {
 public:
  virtual ~AnswerReader() = default;
  virtual void on_head(int status) = 0;
  // Receives a decoded piece of the body. `arrived`: when its bytes were read from the socket.
  virtual void on_body(std::string_view bytes, Clock::time_point arrived) = 0;
  // Called once, after all other calls. Ok if the answer is complete, otherwise kIo with the reason.
  virtual void on_end(const Status& status) = 0;
};

struct ClientOptions {
  ServerUrl server;
  double timeout = 6 * 60 * 60;  // seconds for a request and its answer
};

// Connections are kept alive and reused. If the server has closed an idle connection, the request is sent again on a new connection.
class HttpClient {
 public:
  // kIo: the server's host name cannot be resolved.
  static Result<std::unique_ptr<HttpClient>> open(const ClientOptions& options);
  virtual ~HttpClient() = default;
  virtual void send(const ClientRequest& request, std::shared_ptr<AnswerReader> reader) = 0;
  virtual void at(Clock::time_point when, std::function<void()> work) = 0;
  virtual void run() = 0;  // returns when no answer and no work is pending
};

}  // namespace sluice
