#include "apps/serve/response_answer.h"

namespace sluice::apps {

using Kind = AnswerPiece::Kind;

ResponseAnswer::ResponseAnswer(const Harmony& harmony, const ApiRequest& request, AnswerHead head,
                               const std::vector<std::vector<int32_t>>& prompts,
                               const std::vector<int32_t>& forced)
    : Answer(harmony, request, std::move(head), prompts, forced),
      fields_(request.response),
      conversation_(request.conversation) {
  head_.id = "resp_" + head_.unique;
}

std::string ResponseAnswer::id_of(size_t item) const {
  const char* prefix = items_[item].kind == Kind::kReasoning ? "rs_"
                       : items_[item].kind == Kind::kText    ? "msg_"
                                                             : "fc_";
  return prefix + head_.unique + "_" + std::to_string(item);
}

OrderedJson ResponseAnswer::part_of(const Item& item) const {
  if (item.kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", item.text}};
  return {{"type", "output_text"},
          {"text", item.text},
          {"annotations", OrderedJson::array()},
          {"logprobs", logprobs_of_chat(tokenizer_, item.tokens)}};
}

OrderedJson ResponseAnswer::object_of(size_t item) const {
  const Item& one = items_[item];
  const bool last = item + 1 == items_.size();
  const char* status = one.open ? "in_progress" : last && is_cut() ? "incomplete" : "completed";
  OrderedJson content = OrderedJson::array();
  if (!one.open || !one.text.empty()) content.push_back(part_of(one));
  if (one.kind == Kind::kReasoning)
    return {{"id", id_of(item)},
            {"type", "reasoning"},
            {"summary", OrderedJson::array()},
            {"content", content},
            {"status", status}};
  if (one.kind == Kind::kText)
    return {{"id", id_of(item)},
            {"type", "message"},
            {"status", status},
            {"role", "assistant"},
            {"content", content}};
  return {{"id", id_of(item)},           {"type", "function_call"}, {"status", status},
          {"call_id", call_id_of(item)}, {"name", one.name},        {"arguments", one.text}};
}

OrderedJson ResponseAnswer::object(const char* status) const {
  OrderedJson out = {{"id", head_.id},      {"object", "response"}, {"created_at", head_.created},
                     {"status", status},    {"error", error_},      {"incomplete_details", nullptr},
                     {"model", head_.model}};
  if (is_cut()) out["incomplete_details"] = {{"reason", "max_output_tokens"}};
  OrderedJson output = OrderedJson::array();
  for (size_t i = 0; i < items_.size(); ++i) output.push_back(object_of(i));
  out["output"] = std::move(output);
  out.update(OrderedJson::parse("{" + fields_.given_back + "}"));
  out["usage"] = nullptr;
  if (done())
    out["usage"] = {{"input_tokens", prompt_tokens_},
                    {"input_tokens_details", {{"cached_tokens", cached_tokens_}}},
                    {"output_tokens", completion_tokens_},
                    {"output_tokens_details", {{"reasoning_tokens", reasoning_tokens()}}},
                    {"total_tokens", prompt_tokens_ + completion_tokens_}};
  return out;
}

void ResponseAnswer::append_event(const char* type, OrderedJson members, std::string* out) {
  if (!stream_) return;
  OrderedJson all = {{"type", type}, {"sequence_number", events_++}};
  all.update(members);
  *out += "event: " + std::string(type) + "\ndata: " + dump(all) + "\n\n";
}

void ResponseAnswer::append_state(const char* type, const char* status, std::string* out) {
  append_event(type, {{"response", object(status)}}, out);
}

OrderedJson ResponseAnswer::place() const {
  return {{"item_id", id_of(items_.size() - 1)}, {"output_index", items_.size() - 1}};
}

void ResponseAnswer::begin_item(Kind kind, const std::string& name, std::string* out) {
  end_item(out);
  items_.push_back({.kind = kind, .name = name});
  const size_t item = items_.size() - 1;
  append_event("response.output_item.added", {{"output_index", item}, {"item", object_of(item)}}, out);
  if (kind == Kind::kCall) return;
  OrderedJson members = place();
  members.update({{"content_index", 0}, {"part", part_of(items_.back())}});
  append_event("response.content_part.added", members, out);
}

void ResponseAnswer::go_on(const AnswerPiece& piece, std::string* out) {
  Item& item = items_.back();
  item.text += piece.text;
  item.tokens.insert(item.tokens.end(), piece.tokens.begin(), piece.tokens.end());
  OrderedJson members = place();
  if (item.kind != Kind::kCall) members["content_index"] = 0;
  members["delta"] = piece.text;
  if (item.kind == Kind::kText) members["logprobs"] = logprobs_of_chat(tokenizer_, piece.tokens);
  append_event(item.kind == Kind::kText        ? "response.output_text.delta"
               : item.kind == Kind::kReasoning ? "response.reasoning_text.delta"
                                               : "response.function_call_arguments.delta",
               members, out);
}

void ResponseAnswer::end_item(std::string* out) {
  if (items_.empty() || !items_.back().open) return;
  Item& item = items_.back();
  item.open = false;
  OrderedJson members = place();
  if (item.kind == Kind::kCall) {
    members.update({{"name", item.name}, {"arguments", item.text}});
    append_event("response.function_call_arguments.done", members, out);
  } else {
    members["content_index"] = 0;
    OrderedJson whole = members, part = members;
    whole["text"] = item.text;
    if (item.kind == Kind::kText) whole["logprobs"] = logprobs_of_chat(tokenizer_, item.tokens);
    part["part"] = part_of(item);
    append_event(item.kind == Kind::kText ? "response.output_text.done" : "response.reasoning_text.done",
                 whole, out);
    append_event("response.content_part.done", part, out);
  }
  const size_t last = items_.size() - 1;
  append_event("response.output_item.done", {{"output_index", last}, {"item", object_of(last)}}, out);
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
  if (done(choice)) end_item(out);
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
    end_item(&out);
  }
  const char* status = is_cut() ? "incomplete" : "completed";
  const std::string whole = dump(object(status));
  if (fields_.store) {
    store();
    stored_ = std::make_shared<StoredResponse>(StoredResponse{std::move(conversation_), whole});
  }
  if (!stream_) return whole;
  append_state(is_cut() ? "response.incomplete" : "response.completed", status, &out);
  return out;
}

std::string ResponseAnswer::fail(const ApiError& error) {
  error_ = {{"code", error.code.empty() ? "server_error" : error.code}, {"message", error.message}};
  std::string out;
  append_state("response.failed", "failed", &out);
  return out;
}

}  // namespace sluice::apps
