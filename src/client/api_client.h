// A client of OpenAI-compatible servers: streamed answers with the arrival times of their pieces, and whole answers.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "client/event_stream.h"
#include "client/http_client.h"

namespace sluice {

// The endpoint to use, with the names of vLLM's backends.
enum class ApiBackend : uint8_t {
  kOpenai,      // /v1/completions
  kOpenaiChat,  // /v1/chat/completions
};
constexpr const char* text(ApiBackend backend) {
  return backend == ApiBackend::kOpenai ? "openai" : "openai-chat";
}
constexpr const char* endpoint_of(ApiBackend backend) {
  return backend == ApiBackend::kOpenai ? "/v1/completions" : "/v1/chat/completions";
}

// limit of an answer with a status other than 200; the rest is dropped
constexpr size_t kRefusalBytesMax = 64 << 10;

// Reads the server's token counts. kCorrupt: a count is not an integer, is negative, or is larger than any context.
struct TokenUsage {
  int64_t prompt_tokens = 0, output_tokens = 0;
};
Result<TokenUsage> usage_of(const JsonAt& usage);

// The outcome of one request. Times are seconds on the client's clock.
struct RequestOutcome {
  std::string error = "no answer";  // empty if the answer is complete and has at least one piece
  double start = 0;                 // when the request was sent, since the start of the run
  double queued = 0;             // how long the request waited in the client because of the concurrency limit
  double ttft = 0;               // from sending to the first piece with a choice
  double latency = 0;            // from sending to the last piece
  std::vector<double> itl = {};  // times between successive pieces
  int64_t prompt_tokens = 0, output_tokens = 0;  // from the server's usage; without usage, pieces are counted
  bool usage = false;                            // the server reported its token counts
  std::string text = {};
  bool ok() const { return error.empty(); }
};

// Reads a stream of either endpoint. Like vLLM's client, counts every event with a choice as a piece, even if its text is empty.
class StreamedAnswer final : public AnswerReader {
 public:
  using Done = std::function<void(RequestOutcome)>;
  StreamedAnswer(Clock::time_point sent, Done done) : sent_(sent), done_(std::move(done)) {}
  void on_head(int status) override { status_ = status; }
  void on_body(std::string_view bytes, Clock::time_point arrived) override;
  void on_end(const Status& status) override;

 private:
  void take(const std::string& data, Clock::time_point arrived);
  void take_choice(const Json& choice, Clock::time_point arrived);
  std::string error_of(const Status& status) const;
  Clock::time_point sent_, last_;
  Done done_;
  RequestOutcome out_;
  EventStream events_;
  int status_ = 0;
  int64_t pieces_ = 0;
  bool ended_ = false;  // [DONE] has arrived
  std::string refusal_, event_error_;
};

// Reads an unstreamed answer. The result is the body, or an error such as "HTTP 429: queue full".
class BodyAnswer : public AnswerReader {
 public:
  using Done = std::function<void(Result<std::string>)>;
  explicit BodyAnswer(Done done) : done_(std::move(done)) {}
  void on_head(int status) override { status_ = status; }
  void on_body(std::string_view bytes, Clock::time_point) override {
    if (status_ == 200 || body_.size() < kRefusalBytesMax) body_ += bytes;
  }
  void on_end(const Status& status) override;

 private:
  Done done_;
  int status_ = 0;
  std::string body_;
};
// Reads an unstreamed answer and parses its body as JSON.
class WholeAnswer final : public BodyAnswer {
 public:
  using Done = std::function<void(Result<Json>)>;
  explicit WholeAnswer(Done done);
};

// These functions send a request and wait for the answer. No other request of the client may be running.
Result<std::string> fetch_text(HttpClient& client, const ClientRequest& request);
Result<Json> fetch_json(HttpClient& client, const ClientRequest& request);
// The first name that /v1/models lists; used if no model is named.
Result<std::string> first_model(HttpClient& client, const std::string& api_key);

}  // namespace sluice
