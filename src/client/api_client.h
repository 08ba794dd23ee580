// An OpenAI server as its client sees it: answers that stream, with the times of their pieces, and answers in one piece.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "client/event_stream.h"
#include "client/http_client.h"

namespace sluice {

// Which endpoint is asked; named as in vLLM's --backend.
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

constexpr size_t kRefusalBytesMax = 64 << 10;  // that are kept of an answer with another status than 200

// The tokens that a server says it counted. kCorrupt: a count that is no integer, is negative, or is more than any context holds.
struct TokenUsage {
  int64_t prompt_tokens = 0, output_tokens = 0;
};
Result<TokenUsage> usage_of(const JsonAt& usage);

// What became of one request. Times are seconds on the client's clock.
struct RequestOutcome {
  std::string error = "no answer";  // empty: a whole answer with at least one piece
  double start = 0;                 // when it was sent, after the run's begin
  double queued = 0;                // from its arrival until it was sent: --max-concurrency held it back
  double ttft = 0;                  // from sending to the first piece with a choice
  double latency = 0;               // from sending to the last one
  std::vector<double> itl = {};     // between pieces, one less than there are
  int64_t prompt_tokens = 0,
          output_tokens = 0;  // as the server's usage says; without it the pieces are counted
  bool usage = false;         // the server said how many tokens there were
  std::string text = {};
  bool ok() const { return error.empty(); }
};

// Reads a stream of either endpoint. A piece is an event with a choice, whatever it holds, as vLLM's client counts.
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
  bool ended_ = false;  // [DONE] was there
  std::string refusal_, event_error_;
};

// An answer in one piece: its JSON, or why there is none ("HTTP 429: queue full").
class WholeAnswer final : public AnswerReader {
 public:
  using Done = std::function<void(Result<Json>)>;
  explicit WholeAnswer(Done done) : done_(std::move(done)) {}
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

// Asks and waits for the answer; nothing else may be under way.
Result<Json> ask(HttpClient& client, const ClientRequest& request);
// The first of /v1/models: what to call the model where nobody said.
Result<std::string> first_model(HttpClient& client, const std::string& api_key);

}  // namespace sluice
