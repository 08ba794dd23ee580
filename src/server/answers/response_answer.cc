#include "server/answers/response_answer.h"

namespace sluice {

using Kind = AnswerPiece::Kind;

ResponseAnswer::ResponseAnswer(const ChatFormat& format, const ApiRequest& request, AnswerHead head,
                               const std::vector<std::vector<int32_t>>& prompts,
                               const std::vector<int32_t>& forced)
    : Answer(format, request, std::move(head), prompts, forced),
      fields_(request.response),
      conversation_(request.response.store ? request.conversation : ApiConversation()) {
  head_.id = "resp_" + head_.unique;
}

std::string ResponseAnswer::id_of(size_t item) const {
  const char* prefix = items_[item].kind == Kind::kReasoning ? "rs_"
                       : items_[item].kind == Kind::kText    ? "msg_"
                                                             : "fc_";
  return prefix + head_.unique + "_" + std::to_string(item);
}

std::string ResponseAnswer::part_of(const Item& item, Logprobs logprobs) const {
  if (item.kind == Kind::kReasoning) return dump({{"type", "reasoning_text"}, {"text", item.text}});
  const OrderedJson part = {
      {"type", "output_text"}, {"text", item.text}, {"annotations", OrderedJson::array()}};
  const bool listed = logprobs == Logprobs::kListed;
  return with_member(dump(part), "logprobs", listed ? logprobs_of_chat(tokenizer_, item.tokens) : "[]");
}

std::string ResponseAnswer::object_of(size_t item, Logprobs logprobs) const {
  const Item& one = items_[item];
  const bool last = item + 1 == items_.size();
  const bool cut = last && ended_ && (is_cut() || at(0).cut_in_call());
  const char* status = one.open ? "in_progress" : cut ? "incomplete" : "completed";
  const bool has_part = !one.open || !one.text.empty();
  if (one.kind == Kind::kCall)
    return dump({{"id", id_of(item)},
                 {"type", "function_call"},
                 {"status", status},
                 {"call_id", call_id_of(item)},
                 {"name", one.name},
                 {"arguments", one.text}});
  OrderedJson out = {{"id", id_of(item)}, {"status", status}};
  if (one.kind == Kind::kReasoning)
    out.update({{"type", "reasoning"}, {"summary", OrderedJson::array()}});
  else
    out.update({{"type", "message"}, {"role", "assistant"}});
  return with_member(dump(out), "content", "[" + (has_part ? part_of(one, logprobs) : "") + "]");
}

std::string ResponseAnswer::object(const char* status) const {
  OrderedJson head = {{"id", head_.id},      {"object", "response"}, {"created_at", head_.created},
                      {"status", status},    {"error", error_},      {"incomplete_details", nullptr},
                      {"model", head_.model}};
  if (ended_ && is_cut()) head["incomplete_details"] = {{"reason", "max_output_tokens"}};
  head["usage"] = nullptr;
  if (ended_)
    head["usage"] = {{"input_tokens", prompt_tokens_},
                     {"input_tokens_details", {{"cached_tokens", cached_tokens_}}},
                     {"output_tokens", completion_tokens_},
                     {"output_tokens_details", {{"reasoning_tokens", reasoning_tokens()}}},
                     {"total_tokens", prompt_tokens_ + completion_tokens_}};
  std::string output = "[";
  for (size_t i = 0; i < items_.size(); ++i) output += (i > 0 ? "," : "") + object_of(i, Logprobs::kListed);
  std::string out = with_member(dump(head), "output", output + "]");
  out.pop_back();
  return out + "," + fields_.given_back + "}";
}

void ResponseAnswer::append_event(const char* type, OrderedJson members, std::string* out, const char* key,
                                  const std::string& json) {
  OrderedJson all = {{"type", type}, {"sequence_number", events_++}};
  all.update(members);
  const std::string text = dump(all);
  *out += "event: " + std::string(type) + "\ndata: " + (key ? with_member(text, key, json) : text) + "\n\n";
}

void ResponseAnswer::append_state(const char* type, const char* status, std::string* out) {
  append_event(type, OrderedJson::object(), out, "response", object(status));
}

OrderedJson ResponseAnswer::place() const {
  return {{"item_id", id_of(items_.size() - 1)}, {"output_index", items_.size() - 1}};
}

void ResponseAnswer::begin_item(Kind kind, const std::string& name, std::string* out) {
  end_item(out);
  items_.push_back({.kind = kind, .name = name});
  if (!stream_) return;
  const size_t item = items_.size() - 1;
  append_event("response.output_item.added", {{"output_index", item}}, out, "item",
               object_of(item, Logprobs::kNone));
  if (kind == Kind::kCall) return;
  OrderedJson members = place();
  members["content_index"] = 0;
  append_event("response.content_part.added", members, out, "part", part_of(items_.back(), Logprobs::kNone));
}

void ResponseAnswer::go_on(const AnswerPiece& piece, std::string* out) {
  Item& item = items_.back();
  item.text += piece.text;
  item.tokens.insert(item.tokens.end(), piece.tokens.begin(), piece.tokens.end());
  if (!stream_) return;
  OrderedJson members = place();
  if (item.kind != Kind::kCall) members["content_index"] = 0;
  members["delta"] = piece.text;
  if (item.kind == Kind::kText)
    return append_event("response.output_text.delta", members, out, "logprobs",
                        logprobs_of_chat(tokenizer_, piece.tokens));
  append_event(item.kind == Kind::kReasoning ? "response.reasoning_text.delta"
                                             : "response.function_call_arguments.delta",
               members, out);
}

// The events that end a part or an item omit log probabilities, because the deltas have them, and the whole response repeats them.
void ResponseAnswer::end_item(std::string* out) {
  if (items_.empty() || !items_.back().open) return;
  Item& item = items_.back();
  item.open = false;
  if (!stream_) return;
  OrderedJson members = place();
  if (item.kind == Kind::kCall) {
    members.update({{"name", item.name}, {"arguments", item.text}});
    append_event("response.function_call_arguments.done", members, out);
  } else {
    members["content_index"] = 0;
    OrderedJson whole = members;
    whole["text"] = item.text;
    if (item.kind == Kind::kText) whole["logprobs"] = OrderedJson::array();
    append_event(item.kind == Kind::kText ? "response.output_text.done" : "response.reasoning_text.done",
                 whole, out);
    append_event("response.content_part.done", members, out, "part", part_of(item, Logprobs::kNone));
  }
  const size_t last = items_.size() - 1;
  append_event("response.output_item.done", {{"output_index", last}}, out, "item",
               object_of(last, Logprobs::kNone));
}

void ResponseAnswer::take(const AnswerPiece& piece, std::string* out) {
  if (piece.kind == Kind::kCall) return begin_item(Kind::kCall, piece.text, out);
  const Kind kind = piece.kind == Kind::kArguments ? Kind::kCall : piece.kind;
  const bool goes_on = !items_.empty() && items_.back().open && items_.back().kind == kind;
  if (!goes_on) begin_item(kind, "", out);
  go_on(piece, out);
}

void ResponseAnswer::append(int64_t choice, const std::vector<AnswerPiece>& pieces, std::string* out) {
  if (events_ == 0) {
    append_state("response.created", "in_progress", out);
    append_state("response.in_progress", "in_progress", out);
  }
  for (const AnswerPiece& piece : pieces) take(piece, out);
  ended_ = done(choice);
  if (ended_) end_item(out);
}

void ResponseAnswer::store() {
  for (const ParsedMessage& m : at(0).messages()) conversation_.messages.push_back(m.message);
  for (size_t i = 0; i < items_.size(); ++i)
    if (items_[i].kind == Kind::kCall) conversation_.function_of[call_id_of(i)] = items_[i].name;
}

std::string ResponseAnswer::finish() {
  std::string out;
  if (!stream_) {
    for (const AnswerPiece& piece : at(0).said()) take(piece, &out);
    ended_ = true;
    end_item(&out);
  }
  const char* status = is_cut() ? "incomplete" : "completed";
  const std::string whole = object(status);
  if (fields_.store) {
    store();
    stored_ = std::make_shared<StoredResponse>(StoredResponse{std::move(conversation_), whole});
  }
  if (!stream_) return whole;
  append_event(is_cut() ? "response.incomplete" : "response.completed", OrderedJson::object(), &out,
               "response", whole);
  return out;
}

std::string ResponseAnswer::fail(const ApiError& error) {
  error_ = {{"code", error.code.empty() ? "server_error" : error.code}, {"message", error.message}};
  std::string out;
  append_state("response.failed", "failed", &out);
  return out;
}

}  // namespace sluice
