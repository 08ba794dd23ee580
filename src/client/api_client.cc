#include "client/api_client.h"

namespace sluice {
namespace {

constexpr size_t kErrorBytesMax = 300;  // limit of a server's error text; the rest is cut

// The message in a body of the form {"error": {"message"}} or {"message"}; any other body is returned unchanged.
std::string words_of(const std::string& body) {
  const auto json = parse_json(body, "answer");
  std::string out = body;
  if (json.ok() && json.value().is_object()) {
    const Json& root = json.value();
    const Json& error = root.contains("error") ? root["error"] : root;
    if (error.is_string()) out = error.get<std::string>();
    if (error.is_object() && error.contains("message") && error["message"].is_string())
      out = error["message"].get<std::string>();
  }
  if (out.size() > kErrorBytesMax) out = out.substr(0, kErrorBytesMax) + "...";
  return out;
}

std::string refused(int status, const std::string& body) {
  const std::string words = words_of(body);
  return "HTTP " + std::to_string(status) + (words.empty() ? "" : ": " + words);
}

std::string string_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

template <class Reader, class Value>
Result<Value> answer_of(HttpClient& client, const ClientRequest& request) {
  Result<Value> out = Status{Code::kIo, "no answer"};
  client.send(request, std::make_shared<Reader>([&](Result<Value> answer) { out = std::move(answer); }));
  client.run();
  if (!out.ok()) return Status{out.status().code, request.path + ": " + out.status().message};
  return out;
}

}  // namespace

Result<TokenUsage> usage_of(const JsonAt& usage) {
  const auto prompt = usage.integer("prompt_tokens", 0, INT32_MAX, 0);
  if (!prompt.ok()) return prompt.status();
  const auto output = usage.integer("completion_tokens", 0, INT32_MAX, 0);
  if (!output.ok()) return output.status();
  return TokenUsage{prompt.value(), output.value()};
}

void StreamedAnswer::on_body(std::string_view bytes, Clock::time_point arrived) {
  if (status_ != 200) {
    if (refusal_.size() < kRefusalBytesMax) refusal_ += bytes;
    return;
  }
  events_.push(bytes, [&](const std::string& data) { take(data, arrived); });
  if (events_.too_long())
    event_error_ = "stream: wanted events of at most " + std::to_string(EventStream::kEventBytesMax) +
                   " bytes, found a longer one";
}

void StreamedAnswer::take(const std::string& data, Clock::time_point arrived) {
  if (data == "[DONE]") {
    ended_ = true;
    return;
  }
  const auto json = parse_json(data, "event");
  if (!json.ok() || !json.value().is_object()) {
    event_error_ = "stream: wanted events with JSON objects, found '" + data.substr(0, kErrorBytesMax) + "'";
    return;
  }
  const Json& event = json.value();
  if (event.contains("error")) event_error_ = "error in the stream: " + words_of(data);
  const auto choices = event.find("choices");
  if (choices != event.end() && choices->is_array() && !choices->empty() && choices->front().is_object())
    take_choice(choices->front(), arrived);
  const auto usage = event.find("usage");
  if (usage == event.end() || !usage->is_object()) return;
  const auto counted = usage_of(JsonAt(*usage, "usage"));
  if (!counted.ok()) {
    event_error_ = counted.status().message;
    return;
  }
  out_.usage = true;
  out_.prompt_tokens = counted.value().prompt_tokens;
  out_.output_tokens = counted.value().output_tokens;
}

void StreamedAnswer::take_choice(const Json& choice, Clock::time_point arrived) {
  if (pieces_ == 0) {
    out_.ttft = seconds(arrived - sent_);
  } else {
    out_.itl.push_back(seconds(arrived - last_));
  }
  ++pieces_;
  last_ = arrived;
  out_.latency = seconds(arrived - sent_);
  const auto delta = choice.find("delta");
  out_.text +=
      delta != choice.end() && delta->is_object() ? string_at(*delta, "content") : string_at(choice, "text");
}

std::string StreamedAnswer::error_of(const Status& status) const {
  if (!status.ok()) return status.message;
  if (status_ != 200) return refused(status_, refusal_);
  if (!event_error_.empty()) return event_error_;
  if (pieces_ == 0) return "stream: wanted at least one event with a choice, found none";
  return ended_ ? "" : "stream: wanted [DONE] at its end, found none";
}

void StreamedAnswer::on_end(const Status& status) {
  out_.error = error_of(status);
  if (out_.output_tokens == 0) out_.output_tokens = pieces_;
  done_(std::move(out_));
}

void BodyAnswer::on_end(const Status& status) {
  if (!status.ok()) return done_(status);
  if (status_ != 200) return done_(Status{Code::kIo, refused(status_, body_)});
  done_(std::move(body_));
}

WholeAnswer::WholeAnswer(Done done)
    : BodyAnswer([done = std::move(done)](const Result<std::string>& body) {
        done(body.ok() ? parse_json(body.value(), "answer") : body.status());
      }) {}

Result<std::string> fetch_text(HttpClient& client, const ClientRequest& request) {
  return answer_of<BodyAnswer, std::string>(client, request);
}

Result<Json> fetch_json(HttpClient& client, const ClientRequest& request) {
  return answer_of<WholeAnswer, Json>(client, request);
}

Result<std::string> first_model(HttpClient& client, const std::string& api_key) {
  const auto answer = fetch_json(client, {.method = "GET", .path = "/v1/models", .api_key = api_key});
  if (!answer.ok()) return answer.status();
  const auto data = JsonAt(answer.value(), "/v1/models").at("data");
  if (!data.ok()) return data.status();
  const auto models = data.value().items();
  if (!models.ok()) return models.status();
  if (models.value().empty()) return data.value().wrong("at least one model");
  return models.value().front().string("id");
}

}  // namespace sluice
