// Writes conversations in ChatML as Qwen3's templates do.
#include <algorithm>
#include <utility>

#include "text/chat_turns.h"
#include "text/chatml.h"
#include "text/python_json.h"
#include "text/tool_json.h"

namespace sluice {
namespace {

constexpr std::string_view kThink = "<think>", kEndThink = "</think>";

std::string_view without_newlines_before(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}
std::string_view without_newlines(std::string_view text) {
  text = text.substr(0, text.find_last_not_of('\n') + 1);
  return without_newlines_before(text);
}

// Moves reasoning from the turn's text to its `reasoning`, for clients that send answers back unparsed.
void split_reasoning(Turn* turn) {
  const std::string all = turn->text;
  const size_t first = all.find(kEndThink), last = all.rfind(kEndThink);
  if (!turn->reasoning.empty() || first == all.npos) return;
  std::string_view before = std::string_view(all).substr(0, first);
  before = before.substr(0, before.find_last_not_of('\n') + 1);
  if (const size_t open = before.rfind(kThink); open != before.npos)
    before.remove_prefix(open + kThink.size());
  turn->reasoning = without_newlines_before(before);
  turn->text = without_newlines_before(std::string_view(all).substr(last + kEndThink.size()));
}

bool is_query(ChatRole role, std::string_view text) {
  return role == ChatRole::kUser &&
         !(text.starts_with("<tool_response>") && text.ends_with("</tool_response>"));
}

class PromptWriter : public TokenWriter {
 public:
  enum class Thinks : uint8_t { kShown, kLeftOut };
  explicit PromptWriter(const ChatMl& format)
      : TokenWriter(format.tokenizer(), Specials::kAsText), format_(format) {}
  void system(const ChatOptions& options);
  void turn(const Turn& turn, Thinks thinks, PromptEnd prompt_end);
  void result(const std::vector<Turn>& turns, size_t i, PromptEnd prompt_end);
  void next_turn(ChatMlThinking thinking, const ChatOptions& options);

 private:
  void calls(const Turn& turn);
  void start(std::string_view role) {
    token(format_.tokens().start);
    said(role);
    said("\n");
  }
  void end() {
    token(format_.tokens().end);
    said("\n");
  }
  const ChatMl& format_;
};

void PromptWriter::calls(const Turn& turn) {
  for (size_t i = 0; i < turn.calls.size(); ++i) {
    if (i > 0 || !turn.text.empty()) said("\n");
    token(format_.tokens().call);
    said(hermes_call_head(called_function(turn.calls[i]->recipient)));
    said(turn.calls[i]->content.empty() ? "{}" : turn.calls[i]->content);
    said("}\n");
    token(format_.tokens().end_call);
  }
}

void PromptWriter::system(const ChatOptions& options) {
  const bool instructed = options.has_instructions || !options.developer_instructions.empty();
  if (!instructed && options.functions.empty()) return;
  start("system");
  said(options.developer_instructions);
  if (instructed && !options.functions.empty()) said("\n\n");
  said(options.functions);
  end();
}

void PromptWriter::turn(const Turn& turn, Thinks thinks, PromptEnd prompt_end) {
  const bool is_assistant = turn.role == ChatRole::kAssistant;
  start(is_assistant ? "assistant" : turn.role == ChatRole::kUser ? "user" : "system");
  if (thinks == Thinks::kShown) {
    token(format_.tokens().think);
    said("\n");
    said(without_newlines(turn.reasoning));
    said("\n");
    token(format_.tokens().end_think);
    said("\n\n");
  }
  said(thinks == Thinks::kShown ? without_newlines_before(turn.text) : std::string_view(turn.text));
  calls(turn);
  if (prompt_end != PromptEnd::kOpenMessage) end();
}

void PromptWriter::result(const std::vector<Turn>& turns, size_t i, PromptEnd prompt_end) {
  const auto is_result = [&](size_t at) { return at < turns.size() && turns[at].role == ChatRole::kTool; };
  if (i == 0 || !is_result(i - 1)) {
    token(format_.tokens().start);
    said("user");
  }
  said("\n<tool_response>\n");
  said(turns[i].text);
  if (prompt_end == PromptEnd::kOpenMessage) return;
  said("\n</tool_response>");
  if (!is_result(i + 1)) end();
}

void PromptWriter::next_turn(ChatMlThinking thinking, const ChatOptions& options) {
  start("assistant");
  const bool empty_block = thinking == ChatMlThinking::kSwitch && options.thinking == false;
  if (!empty_block && thinking != ChatMlThinking::kAlways) return;
  token(format_.tokens().think);
  said("\n");
  if (!empty_block) return;
  said("\n");
  token(format_.tokens().end_think);
  said("\n\n");
}

}  // namespace

std::string hermes_call_head(const std::string& function) {
  return "\n{\"name\": \"" + function + "\", \"arguments\": ";
}

Result<std::string> ChatMl::functions_text(const std::vector<FunctionTool>& functions) const {
  std::string out =
      "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
      "function signatures within <tools></tools> XML tags:\n<tools>";
  for (const FunctionTool& f : functions) {
    auto tool = tool_json(f);
    if (!tool.ok()) return tool.status();
    out += "\n" + python_json(tool.value());
  }
  return out +
         "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
         "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
         "<args-json-object>}\n</tool_call>";
}

Result<std::vector<int32_t>> ChatMl::prompt(const Conversation& conversation) const {
  std::vector<Turn> turns = turns_of(conversation.messages);
  if (conversation.end == PromptEnd::kOpenMessage && turns.empty())
    return invalid("wanted a message to continue, found only instructions");
  PromptWriter out(*this);
  out.system(conversation.options);
  size_t last_query = turns.size();
  for (size_t i = 0; i < turns.size(); ++i)
    if (is_query(turns[i].role, turns[i].text)) last_query = i;
  for (size_t i = 0; i < turns.size(); ++i) {
    Turn& turn = turns[i];
    const bool is_last = i + 1 == turns.size();
    const PromptEnd end = is_last ? conversation.end : PromptEnd::kLastMessage;
    if (turn.role == ChatRole::kTool) {
      out.result(turns, i, end);
      continue;
    }
    const bool may_think = turn.role == ChatRole::kAssistant && thinking_ != ChatMlThinking::kNever;
    if (may_think) split_reasoning(&turn);
    // Only reasoning after the user's last question is shown: before calls, and in an answer to continue.
    const bool thinks = may_think && i > last_query && (is_last || !turn.reasoning.empty());
    out.turn(turn, thinks ? PromptWriter::Thinks::kShown : PromptWriter::Thinks::kLeftOut, end);
  }
  if (conversation.end == PromptEnd::kNextMessage) out.next_turn(thinking_, conversation.options);
  return out.finish();
}

void ChatMl::forget_old_reasoning(std::vector<Message>* messages) const {
  auto shown_from = messages->end();
  if (thinking_ != ChatMlThinking::kNever) {
    const auto last_query = std::find_if(messages->rbegin(), messages->rend(),
                                         [](const Message& m) { return is_query(m.role, m.content); });
    if (last_query != messages->rend()) shown_from = last_query.base();
  }
  const auto splits = [&](const Message& m) {
    return thinking_ != ChatMlThinking::kNever && m.role == ChatRole::kAssistant && !is_reasoning(m) &&
           m.content.find(kEndThink) != m.content.npos;
  };
  auto kept = messages->begin();
  for (auto m = messages->begin(); m != shown_from; ++m) {
    // This reasoning must stay if split_reasoning() would otherwise extract reasoning from the text that follows.
    const bool is_needed = m + 1 != messages->end() && splits(m[1]);
    if (m->role == ChatRole::kAssistant && is_reasoning(*m) && !is_needed) continue;
    if (kept != m) *kept = std::move(*m);
    ++kept;
  }
  messages->erase(kept, shown_from);
}

}  // namespace sluice
