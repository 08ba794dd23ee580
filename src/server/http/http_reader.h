// Requests of HTTP/1.1 out of the bytes of a connection, without trust. Nothing here knows a socket.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "server/http/http.h"

namespace sluice {

const char* reason_phrase(int status);  // of HTTP

class HttpReader {
 public:
  explicit HttpReader(const HttpOptions& options);
  ~HttpReader();
  HttpReader(const HttpReader&) = delete;
  HttpReader& operator=(const HttpReader&) = delete;

  enum class State : uint8_t {
    kMore,     // wants more bytes than there are
    kRequest,  // take() gives it
    kRefused,  // what comes is no request, or too large; nothing after it can be understood
  };
  // Takes bytes from the front of `input`, at most up to the end of a request.
  State read(std::string* input);
  bool within() const { return parser_ != nullptr; }  // a request has begun
  int64_t body_bytes() const;                         // of the request that has begun, so far
  // Whether its client waits for "100 Continue" before it sends the body. Says so once.
  bool expects_continue();

  struct Message {
    HttpRequest request;  // without an id, where the client's cannot be used
    bool keep_alive = true;
    bool chunks = true;  // its version knows chunked answers
    bool head_only = false;
  };
  Message take();
  // Of kRefused.
  int status() const { return status_; }
  const std::string& message() const { return message_; }

 private:
  struct Parser;
  State refuse(int status, std::string message);
  State check_head();
  void take_head();
  const HttpOptions& options_;
  std::unique_ptr<Parser> parser_;  // of a request that has begun
  int status_ = 0;
  std::string message_;
};

}  // namespace sluice
