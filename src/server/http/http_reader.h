// Parses HTTP/1.1 requests from untrusted bytes. Independent of sockets.
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
    kMore,     // needs more bytes
    kRequest,  // take() returns the request
    kRefused,  // the request is invalid or too large, and the bytes after it cannot be parsed
  };
  // Consumes bytes from the front of `input`, at most up to the end of one request.
  State read(std::string* input);
  bool within() const { return parser_ != nullptr; }  // a request has begun
  int64_t body_bytes() const;                         // bytes of the current request's body received so far
  // Whether the client waits for "100 Continue" before it sends the body. Returns true at most once per request.
  bool expects_continue();

  struct Message {
    HttpRequest request;  // `id` is empty if the client sent no usable id
    bool keep_alive = true;
    bool chunks = true;  // the client's HTTP version supports chunked answers
    bool head_only = false;
  };
  Message take();
  // The HTTP status and the message of the error; valid in state kRefused.
  int status() const { return status_; }
  const std::string& message() const { return message_; }

 private:
  struct Parser;
  State refuse(int status, std::string message);
  State check_head();
  void take_head();
  const HttpOptions& options_;
  std::unique_ptr<Parser> parser_;  // of the current request
  int status_ = 0;
  std::string message_;
};

}  // namespace sluice
