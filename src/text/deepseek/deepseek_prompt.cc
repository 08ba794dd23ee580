// Writes conversations as DeepSeek's templates do.
#include <algorithm>
#include <utility>

#include "text/chat_turns.h"
#include "text/deepseek/deepseek.h"
#include "text/python_json.h"
#include "text/tool_json.h"

namespace sluice {
namespace {

constexpr std::string_view kDeepSeekEndThink = "</think>";

bool is_system(ChatRole role) { return role == ChatRole::kSystem || role == ChatRole::kDeveloper; }

// The part of an earlier answer that the prompt shows. The templates differ in which </think> of a text ends the reasoning.
std::string_view without_reasoning(DeepSeekModel model, std::string_view text) {
  if (model == DeepSeekModel::kV3) return text;
  const size_t at =
      model == DeepSeekModel::kV31 ? text.find(kDeepSeekEndThink) : text.rfind(kDeepSeekEndThink);
  return at == text.npos ? text : text.substr(at + kDeepSeekEndThink.size());
}

class DeepSeekWriter : public TokenWriter {
 public:
  using Tokens = DeepSeek::Tokens;
  explicit DeepSeekWriter(const DeepSeek& format)
      : TokenWriter(format.tokenizer(), Specials::kAllAsText), format_(format) {}
  void system(const ChatOptions& options, const std::vector<Turn>& turns);
  void turn(const Turn& turn, PromptEnd prompt_end);
  void end(PromptEnd prompt_end, const ChatOptions& options);

 private:
  // Writes the token, or its text if the tokenizer lacks the token.
  void token(int32_t Tokens::*member);
  void frame(std::string_view text);
  void functions(std::string_view text);
  void user(const Turn& turn, PromptEnd prompt_end);
  void assistant(const Turn& turn, PromptEnd prompt_end);
  void calls(const Turn& turn, PromptEnd prompt_end);
  void result(const Turn& turn, PromptEnd prompt_end);

  bool is(DeepSeekModel model) const { return format_.model() == model; }
  // Whether the template always writes <｜Assistant｜> after the user's text, even at the end of a prompt.
  bool asks_with_user() const { return is(DeepSeekModel::kV3) || is(DeepSeekModel::kR1); }

  const DeepSeek& format_;
  bool after_user_ = false, after_result_ = false;  // the role of the last turn
  bool first_result_ = true;                        // no result has followed the last calls yet
};

void DeepSeekWriter::token(int32_t Tokens::*member) {
  const int32_t id = format_.tokens().*member;
  if (id != DeepSeek::kNoToken) return TokenWriter::token(id);
  for (const auto& named : DeepSeek::named_tokens())
    if (named.id == member) said(named.text);
}

// Writes text that does not come from users: the texts of control tokens in it become the tokens.
void DeepSeekWriter::frame(std::string_view text) {
  while (!text.empty()) {
    const DeepSeek::NamedToken* next = nullptr;
    size_t at = text.size();
    for (const auto& named : DeepSeek::named_tokens())
      if (const size_t found = text.find(named.text); found < at) {
        at = found;
        next = &named;
      }
    said(text.substr(0, at));
    text.remove_prefix(at);
    if (!next) return;
    token(next->id);
    text.remove_prefix(next->text.size());
  }
}

void DeepSeekWriter::functions(std::string_view text) {
  const auto [head, tail] = deepseek_tool_text(format_.model());
  if (!text.starts_with(head) || !text.substr(head.size()).ends_with(tail)) return said(text);
  frame(head);
  said(text.substr(head.size(), text.size() - head.size() - tail.size()));
  frame(tail);
}

void DeepSeekWriter::system(const ChatOptions& options, const std::vector<Turn>& turns) {
  token(&Tokens::begin);
  said(options.developer_instructions);
  bool is_first = !options.has_instructions && options.developer_instructions.empty();
  for (const Turn& t : turns) {
    if (!is_system(t.role)) continue;
    if (!is_first) said("\n\n");
    is_first = false;
    said(t.text);
  }
  functions(options.functions);
}

void DeepSeekWriter::turn(const Turn& turn, PromptEnd prompt_end) {
  if (is_system(turn.role)) return;
  if (turn.role == ChatRole::kTool)
    result(turn, prompt_end);
  else if (turn.role == ChatRole::kAssistant)
    assistant(turn, prompt_end);
  else
    user(turn, prompt_end);
  after_user_ = turn.role == ChatRole::kUser;
  after_result_ = turn.role == ChatRole::kTool;
}

void DeepSeekWriter::user(const Turn& turn, PromptEnd prompt_end) {
  token(&Tokens::user);
  said(turn.text);
  if (asks_with_user() && prompt_end != PromptEnd::kOpenMessage) token(&Tokens::assistant);
}

void DeepSeekWriter::assistant(const Turn& turn, PromptEnd prompt_end) {
  if (is(DeepSeekModel::kV31) && after_user_) {
    token(&Tokens::assistant);
    token(&Tokens::end_think);
  }
  if (is(DeepSeekModel::kR1Opened) && !after_result_) token(&Tokens::assistant);
  if (!is(DeepSeekModel::kV31) && after_result_) token(&Tokens::end_outputs);
  said(without_reasoning(format_.model(), turn.text));
  if (!turn.calls.empty()) return calls(turn, prompt_end);
  if (prompt_end != PromptEnd::kOpenMessage) token(&Tokens::end);
}

void DeepSeekWriter::calls(const Turn& turn, PromptEnd prompt_end) {
  first_result_ = true;
  token(&Tokens::calls);
  for (size_t i = 0; i < turn.calls.size(); ++i) {
    const Message& call = *turn.calls[i];
    const std::string arguments = call.content.empty() ? "{}" : call.content;
    if (i > 0 && format_.has_fences()) said("\n");
    token(&Tokens::call);
    if (format_.has_fences()) {
      said("function");
      token(&Tokens::sep);
      said(called_function(call.recipient) + "\n```json\n" + arguments + "\n```");
    } else {
      said(called_function(call.recipient));
      token(&Tokens::sep);
      said(arguments);
    }
    token(&Tokens::end_call);
  }
  if (prompt_end == PromptEnd::kOpenMessage) return;
  token(&Tokens::end_calls);
  token(&Tokens::end);
}

void DeepSeekWriter::result(const Turn& turn, PromptEnd prompt_end) {
  if (!is(DeepSeekModel::kV31)) {
    if (first_result_)
      token(&Tokens::outputs);
    else
      said("\n");
    first_result_ = false;
  }
  token(&Tokens::output);
  said(turn.text);
  if (prompt_end != PromptEnd::kOpenMessage) token(&Tokens::end_output);
}

void DeepSeekWriter::end(PromptEnd prompt_end, const ChatOptions& options) {
  if (prompt_end == PromptEnd::kOpenMessage) return;
  if (after_result_ && !is(DeepSeekModel::kV31)) token(&Tokens::end_outputs);
  if (prompt_end == PromptEnd::kLastMessage || after_result_) return;
  if (is(DeepSeekModel::kV31)) {
    if (!after_user_) return;
    token(&Tokens::assistant);
    return token(options.thinking.value_or(false) ? &Tokens::think : &Tokens::end_think);
  }
  if (!asks_with_user() || !after_user_) token(&Tokens::assistant);
  if (!is(DeepSeekModel::kR1Opened)) return;
  token(&Tokens::think);
  said("\n");
}

}  // namespace

DeepSeekToolText deepseek_tool_text(DeepSeekModel model) {
  switch (model) {
    case DeepSeekModel::kV3:
      // vLLM's template writes its own indentation into the prompt.
      return {.head =
                  "    \n\n# Tools\n\nYou may call one or more functions to assist with the user "
                  "query.\n\nYou are provided with "
                  "function signatures within <tools></tools> XML tags:\n<tools>",
              .tail =
                  "    \n</tools>\n\n\n\n    For function call returns, you should first print "
                  "<｜tool▁calls▁begin｜>\n\n"
                  "    For each function call, you should return object like:\n\n"
                  "    <｜tool▁call▁begin｜>function<｜tool▁sep｜><function_name>\n```json\n"
                  "<function_arguments_in_json_format>\n```<｜tool▁call▁end｜>\n\n"
                  "    At the end of function call returns, you should print "
                  "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"};
    case DeepSeekModel::kV31:
      return {.head = "\n\n## Tools\nYou have access to the following tools:\n",
              .tail =
                  "\nIMPORTANT: ALWAYS adhere to this exact format for tool "
                  "use:\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
                  "tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>{{additional_tool_calls}"
                  "}<｜tool▁calls▁end｜>\n\n"
                  "Where:\n\n- `tool_call_name` must be an exact match to one of the available tools\n- "
                  "`tool_call_arguments` must be "
                  "valid JSON that strictly follows the tool's Parameters Schema\n- For multiple tool calls, "
                  "chain them directly "
                  "without separators or spaces\n"};
    default:
      return {.head =
                  "\n\nYou are a helpful assistant with tool calling capabilities. When a tool call is "
                  "needed, you MUST use the "
                  "following format to issue the "
                  "call:\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>FUNCTION_NAME\n"
                  "```json\n{\"param1\": \"value1\", \"param2\": "
                  "\"value2\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>\n\n"
                  "Make sure the JSON is valid.## Tools\n\n### Function\n\nYou have the following functions "
                  "available:\n\n",
              .tail = ""};
  }
}

Result<std::string> DeepSeek::functions_text(const std::vector<FunctionTool>& functions) const {
  SLUICE_TRY(need_calls());
  const auto [head, tail] = deepseek_tool_text(model_);
  std::string out(head);
  for (const FunctionTool& f : functions) {
    auto json = model_ == DeepSeekModel::kV31 ? parameters_json(f) : tool_json(f);
    if (!json.ok()) return json.status();
    const std::string shown = python_json(json.value());
    if (model_ == DeepSeekModel::kV31)
      out += "\n### " + f.name + "\nDescription: " + f.description + "\n\nParameters: " + shown + "\n";
    else
      out += model_ == DeepSeekModel::kV3 ? "\n" + shown : "\n```json\n" + shown + "\n```\n";
  }
  return out += tail;
}

Result<std::vector<int32_t>> DeepSeek::prompt(const Conversation& conversation) const {
  const std::vector<Turn> turns = turns_of(conversation.messages);
  if (conversation.end == PromptEnd::kOpenMessage) {
    if (turns.empty()) return invalid("wanted a message to continue, found only instructions");
    if (is_system(turns.back().role))
      return invalid(
          "wanted a message of the user, the assistant or a tool to continue, found a message of the " +
          std::string(text(turns.back().role)) + ", whose text is at the front of the prompt");
  }
  DeepSeekWriter out(*this);
  out.system(conversation.options, turns);
  for (size_t i = 0; i < turns.size(); ++i)
    out.turn(turns[i], i + 1 == turns.size() ? conversation.end : PromptEnd::kLastMessage);
  out.end(conversation.end, conversation.options);
  return out.finish();
}

void DeepSeek::forget_old_reasoning(std::vector<Message>* messages) const {
  std::erase_if(*messages,
                [](const Message& m) { return m.role == ChatRole::kAssistant && is_reasoning(m); });
}

}  // namespace sluice
