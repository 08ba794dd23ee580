#include "text/chatml.h"

#include <algorithm>

#include "text/chat_format_entries.h"
#include "text/chatml_parser.h"
#include "text/frame_gate.h"
#include "text/template_words.h"

namespace sluice {

Result<ChatMl> ChatMl::from(const Tokenizer& tokenizer, ChatMlThinking thinking) {
  ChatMl out(tokenizer, thinking);
  Tokens& t = out.tokens_;
  for (const auto& [text, id] : {std::pair("<|im_start|>", &t.start), std::pair("<|im_end|>", &t.end)}) {
    const auto found = tokenizer.id_of(text);
    if (!found)
      return unsupported("tokenizer: wanted the special tokens of ChatML, found no " + std::string(text));
    *id = *found;
  }
  for (const auto& [text, id] : {std::pair("<think>", &t.think), std::pair("</think>", &t.end_think),
                                 std::pair("<tool_call>", &t.call), std::pair("</tool_call>", &t.end_call)}) {
    const auto found = tokenizer.id_of_added(text);
    if (!found)
      return unsupported("tokenizer: wanted the added tokens of reasoning and calls, found no " +
                         std::string(text));
    *id = *found;
  }
  return out;
}

std::string_view ChatMl::name() const {
  switch (thinking_) {
    case ChatMlThinking::kAlways:
      return "qwen3-thinking";
    case ChatMlThinking::kNever:
      return "qwen3-instruct";
    default:
      return "qwen3";
  }
}

bool ChatMl::is_frame(int32_t id) const {
  return tokenizer_.is_special(id) || id == tokens_.think || id == tokens_.end_think || id == tokens_.call ||
         id == tokens_.end_call;
}

Result<std::vector<int32_t>> ChatMl::call_start(const std::string& function,
                                                std::optional<bool> thinking) const {
  std::string text;
  // What the template writes for an answer without reasoning.
  if (thinking_ == ChatMlThinking::kSwitch && thinking.value_or(true)) text = "<think>\n\n</think>\n\n";
  if (thinking_ == ChatMlThinking::kAlways) text = "\n</think>\n\n";
  std::vector<int32_t> ids;
  SLUICE_TRY(encode_frame(text + "<tool_call>" + hermes_call_head(function), &ids));
  return ids;
}

std::unique_ptr<AnswerParser> ChatMl::parser(const AnswerContext& context) const {
  using Begin = PartParser::Begin;
  const bool opened = thinking_ == ChatMlThinking::kAlways;
  return std::make_unique<ChatMlParser>(*this,
                                        context.continues ? Begin::kText
                                        : opened          ? Begin::kReasoning
                                                          : Begin::kAnswer,
                                        context.calls ? PartParser::Calls::kRead : PartParser::Calls::kText);
}

Result<std::unique_ptr<ChatGate>> ChatMl::gate(const AnswerEnds& ends, std::optional<bool> thinking) const {
  using Begin = FrameGate::Begin;
  AnswerFrame frame{.end = tokens_.end,
                    .think = tokens_.think,
                    .end_think = tokens_.end_think,
                    .end_call = tokens_.end_call,
                    .first_call = {tokens_.call},
                    .finish = {tokens_.end}};
  SLUICE_TRY(encode_frame("\n\n", &frame.after_reasoning));
  SLUICE_TRY(encode_frame("}\n</tool_call>", &frame.call_end));
  SLUICE_TRY(encode_frame("\n<tool_call>", &frame.next_call));
  for (const std::string& function : ends.functions)
    SLUICE_TRY(encode_frame(hermes_call_head(function), &frame.call_heads.emplace_back()));
  const bool may_think = thinking_ == ChatMlThinking::kSwitch && thinking.value_or(true);
  return FrameGate::make(std::move(frame), ends,
                         ends.continues                         ? Begin::kText
                         : thinking_ == ChatMlThinking::kAlways ? Begin::kReasoning
                         : may_think                            ? Begin::kEither
                                                                : Begin::kAnswer);
}

namespace {

// All string literals in Qwen3's templates. A template with another string belongs to another format.
constexpr std::string_view kTemplateStrings[] = {
    "",
    "\n",
    "\n\n",
    "system",
    "user",
    "assistant",
    "tool",
    "<|im_start|>",
    "<|im_end|>",
    "<|im_end|>\n",
    "<|im_start|>system\n",
    "<|im_start|>user",
    "<|im_start|>assistant\n",
    "<|im_start|>assistant\n<think>\n",
    "<think>",
    "</think>",
    "<think>\n",
    "\n<think>\n",
    "\n</think>\n\n",
    "<think>\n\n</think>\n\n",
    "<tool_call>\n{\"name\": \"",
    "\", \"arguments\": ",
    "}\n</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "\n<tool_response>\n",
    "\n</tool_response>",
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
    "function signatures within <tools></tools> XML tags:\n<tools>",
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
    "<args-json-object>}\n</tool_call><|im_end|>\n",
};

// When the model of this template reasons; nullopt: the template belongs to another format.
std::optional<ChatMlThinking> thinking_of(const ChatFiles& files) {
  const auto words = template_words(files.chat_template.value_or(""));
  if (!words || words->has_text) return {};
  for (const std::string& text : words->strings)
    if (std::find(std::begin(kTemplateStrings), std::end(kTemplateStrings), text) ==
        std::end(kTemplateStrings))
      return {};
  for (const char* text : {"<|im_start|>", "\n<tool_response>\n", "}\n</tool_call>"})
    if (!words->has_string(text)) return {};
  const bool has_next = words->has_string("<|im_start|>assistant\n"),
             opens = words->has_string("<|im_start|>assistant\n<think>\n"),
             switches = words->has_string("<think>\n\n</think>\n\n") && words->has_name("enable_thinking");
  const auto is_about_thinking = [](const std::string& text) { return text.find("think>") != text.npos; };
  const bool thinks = std::any_of(words->strings.begin(), words->strings.end(), is_about_thinking);
  if (!thinks)
    return has_next && !words->has_name("reasoning_content") ? std::optional(ChatMlThinking::kNever)
                                                             : std::nullopt;
  // These names are in the template's code that decides which reasoning a prompt shows. No string literal reveals this code.
  if (!words->has_name("last_query_index") || !words->has_name("multi_step_tool") ||
      !words->has_name("reasoning_content"))
    return {};
  if (opens == switches || has_next != switches) return {};
  return opens ? ChatMlThinking::kAlways : ChatMlThinking::kSwitch;
}

template <ChatMlThinking thinking>
bool is_chatml(const ChatFiles& files) {
  return thinking_of(files) == thinking;
}

template <ChatMlThinking thinking>
Result<ChatFormatPointer> open_chatml(const ChatFiles& files) {
  auto chatml = ChatMl::from(files.tokenizer, thinking);
  if (!chatml.ok()) return chatml.status();
  return ChatFormatPointer(std::make_shared<const ChatMl>(std::move(chatml).value()));
}

template <ChatMlThinking thinking>
constexpr ChatFormatEntry entry(std::string_view name, std::string_view reasoning_parsers) {
  return {.name = name,
          .fits = is_chatml<thinking>,
          .open = open_chatml<thinking>,
          .parsers = {.reasoning = reasoning_parsers, .tools = "hermes qwen25 qwen"}};
}

}  // namespace

const ChatFormatEntry kQwen3Format = entry<ChatMlThinking::kSwitch>("qwen3", "qwen3 deepseek_r1 deepseek-r1");
const ChatFormatEntry kQwen3ThinkingFormat =
    entry<ChatMlThinking::kAlways>("qwen3-thinking", "qwen3 qwen3-thinking deepseek_r1 deepseek-r1");
const ChatFormatEntry kQwen3InstructFormat = entry<ChatMlThinking::kNever>("qwen3-instruct", "qwen3");

}  // namespace sluice
