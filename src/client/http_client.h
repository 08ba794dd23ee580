// HTTP/1.1 to one server: many requests at once on one thread, answers read as they come. Nothing of the library behind it shows
// here.
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
  std::string path;           // in front of every request's: "" or "/api"
  std::string place() const;  // "host:8000", "[::1]:8000"
  std::string text() const;
};
// "http://host:8000/path", port 80 if it names none. kInvalidArgument: what is no such URL; https is refused by name.
Result<ServerUrl> parse_url(std::string_view text);

struct ClientRequest {
  std::string method = "POST";
  std::string path;  // behind ServerUrl::path
  std::string body = {};
  std::string api_key = {};  // empty: no Authorization
};

// Takes one answer, on the thread that runs the client.
class AnswerReader {
 public:
  virtual ~AnswerReader() = default;
  virtual void on_head(int status) = 0;
  // A piece of the body, decoded; `arrived` is when its bytes had been read.
  virtual void on_body(std::string_view bytes, Clock::time_point arrived) = 0;
  // Once, and last: whether the whole answer was there, or kIo and why not.
  virtual void on_end(const Status& status) = 0;
};

struct ClientOptions {
  ServerUrl server;
  double timeout = 6 * 60 * 60;  // seconds of a request and its answer
};

// Connections are kept and used again. A request that meets one which the server has closed meanwhile goes out on a new one.
class HttpClient {
 public:
  // kIo: the name of the server is not known.
  static Result<std::unique_ptr<HttpClient>> open(const ClientOptions& options);
  virtual ~HttpClient() = default;
  virtual void send(const ClientRequest& request, std::shared_ptr<AnswerReader> reader) = 0;
  virtual void at(Clock::time_point when, std::function<void()> work) = 0;
  virtual void run() = 0;  // until no answer and no work is awaited
};

}  // namespace sluice
