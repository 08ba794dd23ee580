#include "server/answers/text_answer.h"

#include <algorithm>

namespace sluice {

using Kind = AnswerPiece::Kind;

TextAnswer::TextAnswer(const ChatFormat& format, const ApiRequest& request, AnswerHead head,
                       const std::vector<std::vector<int32_t>>& prompts, const std::vector<int32_t>& forced)
    : Answer(format, request, std::move(head), prompts, forced),
      chat_(request.kind == ApiKind::kChat),
      include_usage_(request.include_usage),
      usage_in_each_event_(request.usage_in_each_event),
      stop_token_ids_(request.sampling.stop_token_ids),
      calls_(static_cast<size_t>(choices())),
      begun_(static_cast<size_t>(choices())) {
  head_.id = (chat_ ? "chatcmpl-" : "cmpl-") + head_.id;
  event_head_ = "data: {\"id\":" + json_text(head_.id) +
                ",\"object\":" + (chat_ ? "\"chat.completion.chunk\"" : "\"text_completion\"") +
                ",\"created\":" + std::to_string(head_.created) + ",\"model\":" + json_text(head_.model) +
                ",\"choices\":[";
}

std::string TextAnswer::reason_of(int64_t choice) const {
  const AnswerChoice& c = at(choice);
  const bool calls = c.called() && !c.cut_in_call() && c.finish() == FinishReason::kStop;
  return calls ? "tool_calls" : std::string(text(c.finish()));
}

std::string TextAnswer::logprobs_of(const std::vector<TextToken>& tokens) const {
  if (!logprobs_) return "null";
  if (!chat_) return logprobs_of_completion(tokenizer_, tokens);
  return "{\"content\":" + logprobs_of_chat(tokenizer_, tokens) + ",\"refusal\":null}";
}

OrderedJson TextAnswer::call_of(int64_t choice, int64_t call, const std::string& function) const {
  return {{"id", "call_" + head_.unique + "_" + std::to_string(choice) + "_" + std::to_string(call)},
          {"type", "function"},
          {"function", {{"name", function}, {"arguments", ""}}}};
}

// As in vLLM: the request's stop string or stop token that ended the choice, else null.
OrderedJson TextAnswer::stop_reason_of(int64_t choice) const {
  const auto& token = at(choice).stop_token();
  if (token && std::binary_search(stop_token_ids_.begin(), stop_token_ids_.end(), *token)) return *token;
  return or_null(at(choice).stop().value_or(""));
}

void TextAnswer::append_event(int64_t choice, const std::string& member, const std::vector<TextToken>& tokens,
                              bool last, std::string* out) const {
  *out += event_head_ + "{\"index\":" + std::to_string(choice) + "," + member +
          ",\"logprobs\":" + (tokens.empty() ? "null" : logprobs_of(tokens)) +
          ",\"finish_reason\":" + (last ? json_text(reason_of(choice)) : "null");
  if (last) *out += ",\"stop_reason\":" + dump(stop_reason_of(choice));
  *out += "}]";
  if (include_usage_) *out += ",\"usage\":" + (usage_in_each_event_ ? dump(usage()) : "null");
  *out += "}\n\n";
}

std::string TextAnswer::delta_of(const AnswerPiece& piece, int64_t choice) {
  const std::string text = json_text(piece.text);
  int64_t& calls = calls_[static_cast<size_t>(choice)];
  if (piece.kind == Kind::kText) return "{\"content\":" + text + "}";
  if (piece.kind == Kind::kReasoning)
    return "{\"reasoning\":" + text + ",\"reasoning_content\":" + text + "}";
  OrderedJson call = {{"index", calls}};
  if (piece.kind == Kind::kCall)
    call.update(call_of(choice, calls++, piece.text));
  else
    call = {{"index", calls - 1}, {"function", {{"arguments", piece.text}}}};
  return dump({{"tool_calls", OrderedJson::array({call})}});
}

void TextAnswer::append(int64_t choice, const std::vector<AnswerPiece>& pieces, std::string* out) {
  const bool last = done(choice);
  if (!chat_) {
    const AnswerPiece none;
    const AnswerPiece& piece = pieces.empty() ? none : pieces.front();  // a completion has at most one piece
    if (!pieces.empty() || last)
      append_event(choice, "\"text\":" + json_text(piece.text), piece.tokens, last, out);
    return;
  }
  if (!begun_[static_cast<size_t>(choice)])
    append_event(choice, R"("delta":{"role":"assistant","content":""})", {}, false, out);
  begun_[static_cast<size_t>(choice)] = true;
  for (const AnswerPiece& piece : pieces)
    append_event(choice, "\"delta\":" + delta_of(piece, choice), piece.tokens, false, out);
  if (last) append_event(choice, "\"delta\":{}", {}, true, out);
}

OrderedJson TextAnswer::usage() const {
  OrderedJson out = {{"prompt_tokens", prompt_tokens_},
                     {"prompt_tokens_details", {{"cached_tokens", cached_tokens_}}},
                     {"completion_tokens", completion_tokens_}};
  if (chat_) out["completion_tokens_details"] = {{"reasoning_tokens", reasoning_tokens()}};
  out["total_tokens"] = prompt_tokens_ + completion_tokens_;
  return out;
}

OrderedJson TextAnswer::message_of(int64_t choice) const {
  std::string content, reasoning;
  OrderedJson calls = OrderedJson::array();
  for (const AnswerPiece& piece : at(choice).said()) {
    if (piece.kind == Kind::kText) content += piece.text;
    if (piece.kind == Kind::kReasoning) reasoning += piece.text;
    if (piece.kind == Kind::kCall) calls.push_back(call_of(choice, std::ssize(calls), piece.text));
    if (piece.kind == Kind::kArguments) calls.back()["function"]["arguments"] = piece.text;
  }
  OrderedJson out = {{"role", "assistant"}, {"content", content}};
  if (content.empty() && !calls.empty()) out["content"] = nullptr;
  out["reasoning"] = out["reasoning_content"] = or_null(reasoning);
  if (!calls.empty()) out["tool_calls"] = std::move(calls);
  return out;
}

std::string TextAnswer::finish() {
  if (stream_)
    return (include_usage_ ? event_head_ + "],\"usage\":" + dump(usage()) + "}\n\n" : "") +
           "data: [DONE]\n\n";
  std::string list = "[";
  for (int64_t i = 0; i < choices(); ++i) {
    std::string text;
    std::vector<TextToken> tokens;
    for (const AnswerPiece& piece : at(i).said()) {
      if (piece.kind != Kind::kText) continue;
      text += piece.text;
      tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
    }
    OrderedJson one = {{"index", i}};
    if (chat_)
      one["message"] = message_of(i);
    else
      one["text"] = text;
    one["finish_reason"] = reason_of(i);
    one["stop_reason"] = stop_reason_of(i);
    list += (i > 0 ? "," : "") + with_member(dump(one), "logprobs", logprobs_of(tokens));
  }
  const OrderedJson head = {{"id", head_.id},
                            {"object", chat_ ? "chat.completion" : "text_completion"},
                            {"created", head_.created},
                            {"model", head_.model},
                            {"usage", usage()}};
  return with_member(dump(head), "choices", list + "]");
}

std::string TextAnswer::fail(const ApiError& error) {
  return "data: " + error_json(error) + "\n\ndata: [DONE]\n\n";
}

}  // namespace sluice
