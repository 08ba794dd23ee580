#include "apps/serve/api_answer.h"

#include <nlohmann/json.hpp>

#include "apps/reply.h"
#include "apps/serve/stop_matcher.h"

namespace sluice::apps {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }
std::string json_text(const std::string& text) { return dump(Json(text)); }
Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json model_object(const std::string& name, int64_t created, int64_t max_model_len) {
  return {{"id", name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "sluice"},
          {"max_model_len", max_model_len}};
}

}  // namespace

std::string error_json(const ApiError& e) {
  return dump(
      {{"error",
        {{"message", e.message}, {"type", e.type}, {"param", or_null(e.param)}, {"code", or_null(e.code)}}}});
}

std::string error_event(const ApiError& error) {
  return "data: " + error_json(error) + "\n\ndata: [DONE]\n\n";
}

std::string models_json(const std::vector<std::string>& names, int64_t created, int64_t max_model_len) {
  Json data = Json::array();
  for (const std::string& name : names) data.push_back(model_object(name, created, max_model_len));
  return dump({{"object", "list"}, {"data", data}});
}

std::string model_json(const std::string& name, int64_t created, int64_t max_model_len) {
  return dump(model_object(name, created, max_model_len));
}

std::string tokenize_json(const std::vector<int32_t>& tokens, int64_t max_model_len) {
  return dump({{"count", tokens.size()}, {"max_model_len", max_model_len}, {"tokens", tokens}});
}

std::string detokenize_json(const std::string& text) { return dump({{"prompt", text}}); }
std::string version_json() { return dump({{"version", SLUICE_VERSION}}); }
std::string status_json(const std::string& status) { return dump({{"status", status}}); }

// What one choice has said so far. A stop string is looked for in the text for the user, not in the reasoning.
class AnswerChoice {
 public:
  AnswerChoice(const Harmony& harmony, const ApiRequest& request)
      : tokenizer_(harmony.tokenizer()),
        show_reasoning_(request.include_reasoning),
        decoder_(tokenizer_),
        stop_(request.stop) {
    if (request.kind != ApiKind::kChat) return;
    reader_ = std::make_unique<ReplyReader>(harmony, [this](Channel channel, const std::string& text) {
      if (channel == Channel::kFinal) return add_text(text);
      if (show_reasoning_ && !stop_.found()) new_reasoning_ += text;
    });
  }

  void echo(const std::string& text) { new_text_ += text; }

  void push(const GeneratedToken& token) {
    // A token that ends the answer is part of it only where it says how: not as text.
    const bool is_text = token.finish != FinishReason::kStop || tokenizer_.is_special(token.id);
    if (is_text && reader_)
      reader_->push(token);
    else if (is_text)
      add_text(decoder_.push(token.id));
    if (token.finish == FinishReason::kNone && !stop_.found()) return;
    if (!stop_.found()) {
      if (reader_)
        (void)reader_->finish();
      else
        add_text(decoder_.finish());
      if (!stop_.found()) new_text_ += stop_.flush();
    }
    finish_reason_ = stop_.found() ? "stop" : std::string(sluice::text(token.finish));
  }

  // What is new since the last call.
  std::string take_text() {
    text_ += new_text_;
    return std::exchange(new_text_, {});
  }
  std::string take_reasoning() {
    reasoning_ += new_reasoning_;
    return std::exchange(new_reasoning_, {});
  }
  const std::string& text() const { return text_; }
  const std::string& reasoning() const { return reasoning_; }
  const std::string& finish_reason() const { return finish_reason_; }  // empty: it goes on
  const std::optional<std::string>& stop() const { return stop_.found(); }
  int64_t tokens = 0;
  bool first = true;  // no event has told of it yet

 private:
  void add_text(const std::string& text) { new_text_ += stop_.push(text); }

  Tokenizer tokenizer_;
  bool show_reasoning_;
  std::unique_ptr<ReplyReader> reader_;
  StreamDecoder decoder_;
  StopMatcher stop_;
  std::string new_text_, new_reasoning_, text_, reasoning_, finish_reason_;
};

Answer::~Answer() = default;

Answer::Answer(const Harmony& harmony, const ApiRequest& request, AnswerHead head,
               const std::vector<std::vector<int32_t>>& prompts)
    : kind_(request.kind),
      stream_(request.stream),
      include_usage_(request.include_usage),
      head_(std::move(head)),
      choices_each_(request.choices) {
  const bool chat = kind_ == ApiKind::kChat;
  head_.id = (chat ? "chatcmpl-" : "cmpl-") + head_.id;
  event_head_ = "data: {\"id\":" + json_text(head_.id) +
                ",\"object\":" + (chat ? "\"chat.completion.chunk\"" : "\"text_completion\"") +
                ",\"created\":" + std::to_string(head_.created) + ",\"model\":" + json_text(head_.model) +
                ",\"choices\":[";
  for (size_t p = 0; p < prompts.size(); ++p) {
    prompt_tokens_ += std::ssize(prompts[p]);
    for (int64_t i = 0; i < request.choices; ++i) {
      auto choice = std::make_unique<AnswerChoice>(harmony, request);
      if (request.echo) {
        const auto* text = std::get_if<std::string>(&request.prompts[p]);
        choice->echo(valid_utf8(text ? *text : harmony.tokenizer().decode(prompts[p])));
      }
      choices_.push_back(std::move(choice));
    }
  }
  open_ = choices();
}

bool Answer::done(int64_t choice) const {
  return !choices_[static_cast<size_t>(choice)]->finish_reason().empty();
}

std::string Answer::finish_reason(int64_t choice) const {
  return choices_[static_cast<size_t>(choice)]->finish_reason();
}

void Answer::append_event(int64_t choice, const std::string& member, const std::string& reason,
                          std::string* out) const {
  const AnswerChoice& c = *choices_[static_cast<size_t>(choice)];
  *out += event_head_ + "{\"index\":" + std::to_string(choice) + "," + member +
          ",\"logprobs\":null,\"finish_reason\":" + (reason.empty() ? "null" : json_text(reason));
  if (!reason.empty()) *out += ",\"stop_reason\":" + (c.stop() ? json_text(*c.stop()) : "null");
  *out += include_usage_ ? "}],\"usage\":null}\n\n" : "}]}\n\n";
}

void Answer::push(int64_t choice, const GeneratedToken& token, std::string* out) {
  if (done(choice)) return;
  AnswerChoice& c = *choices_[static_cast<size_t>(choice)];
  ++completion_tokens_;
  // A prompt counts once, however many answers it has.
  if (c.tokens++ == 0 && choice % choices_each_ == 0) cached_tokens_ += token.cached_tokens;
  c.push(token);
  if (done(choice)) --open_;
  const std::string reasoning = c.take_reasoning(), text = c.take_text();
  if (!stream_) return;
  if (kind_ == ApiKind::kCompletion) {
    if (!text.empty() || done(choice))
      append_event(choice, "\"text\":" + json_text(text), c.finish_reason(), out);
    return;
  }
  if (c.first) append_event(choice, R"("delta":{"role":"assistant","content":""})", "", out);
  c.first = false;
  if (!reasoning.empty()) {
    const std::string q = json_text(reasoning);
    append_event(choice, "\"delta\":{\"reasoning\":" + q + ",\"reasoning_content\":" + q + "}", "", out);
  }
  if (!text.empty()) append_event(choice, "\"delta\":{\"content\":" + json_text(text) + "}", "", out);
  if (done(choice)) append_event(choice, "\"delta\":{}", c.finish_reason(), out);
}

std::string Answer::usage_json() const {
  return dump({{"prompt_tokens", prompt_tokens_},
               {"prompt_tokens_details", {{"cached_tokens", cached_tokens_}}},
               {"completion_tokens", completion_tokens_},
               {"total_tokens", prompt_tokens_ + completion_tokens_}});
}

std::string Answer::finish() const {
  if (stream_)
    return (include_usage_ ? event_head_ + "],\"usage\":" + usage_json() + "}\n\n" : "") + "data: [DONE]\n\n";
  Json list = Json::array();
  for (int64_t i = 0; i < choices(); ++i) {
    const AnswerChoice& c = *choices_[static_cast<size_t>(i)];
    Json one = {{"index", i}};
    if (kind_ == ApiKind::kChat) {
      one["message"] = {{"role", "assistant"}, {"content", c.text()}};
      one["message"]["reasoning"] = or_null(c.reasoning());
      one["message"]["reasoning_content"] = or_null(c.reasoning());
    } else {
      one["text"] = c.text();
    }
    one["logprobs"] = nullptr;
    one["finish_reason"] = c.finish_reason();
    one["stop_reason"] = c.stop() ? Json(*c.stop()) : Json(nullptr);
    list.push_back(std::move(one));
  }
  return dump({{"id", head_.id},
               {"object", kind_ == ApiKind::kChat ? "chat.completion" : "text_completion"},
               {"created", head_.created},
               {"model", head_.model},
               {"choices", list},
               {"usage", Json::parse(usage_json())}});
}

}  // namespace sluice::apps
