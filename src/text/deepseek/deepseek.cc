#include "text/deepseek/deepseek.h"

#include <algorithm>
#include <array>
#include <utility>

#include "text/chat_format_entries.h"
#include "text/deepseek/deepseek_parser.h"
#include "text/frame_gate.h"
#include "text/template_words.h"

namespace sluice {
namespace {

constexpr std::string_view kCallsToken = "<｜tool▁calls▁begin｜>", kCallToken = "<｜tool▁call▁begin｜>",
                           kSepToken = "<｜tool▁sep｜>", kEndCallToken = "<｜tool▁call▁end｜>",
                           kEndCallsToken = "<｜tool▁calls▁end｜>", kEndToken = "<｜end▁of▁sentence｜>";

// The text of a call between the call's first token and the arguments.
std::string deepseek_call_head(const DeepSeek& format, const std::string& function) {
  if (!format.has_fences()) return function + std::string(kSepToken);
  return "function" + std::string(kSepToken) + function + "\n```json\n";
}

}  // namespace

const std::vector<DeepSeek::NamedToken>& DeepSeek::named_tokens() {
  using T = Tokens;
  static const std::vector<NamedToken> all = {
      {"<｜begin▁of▁sentence｜>", &T::begin},
      {kEndToken, &T::end},
      {"<｜User｜>", &T::user},
      {"<｜Assistant｜>", &T::assistant},
      {"<think>", &T::think},
      {"</think>", &T::end_think},
      {kCallsToken, &T::calls},
      {kCallToken, &T::call},
      {kSepToken, &T::sep},
      {kEndCallToken, &T::end_call},
      {kEndCallsToken, &T::end_calls},
      {"<｜tool▁outputs▁begin｜>", &T::outputs},
      {"<｜tool▁output▁begin｜>", &T::output},
      {"<｜tool▁output▁end｜>", &T::end_output},
      {"<｜tool▁outputs▁end｜>", &T::end_outputs},
  };
  return all;
}

Result<DeepSeek> DeepSeek::from(const Tokenizer& tokenizer, DeepSeekModel model) {
  DeepSeek out(tokenizer, model);
  std::string_view missing;
  for (const auto& [text, member] : named_tokens()) {
    const bool is_think = member == &Tokens::think || member == &Tokens::end_think;
    const bool is_tool = text.find("tool") != text.npos;
    if (is_think && model == DeepSeekModel::kV3) continue;
    const auto found = tokenizer.id_of_added(text);
    if (found)
      out.tokens_.*member = *found;
    else if (is_tool && out.is_r1())
      missing = text;
    else
      return unsupported("tokenizer: wanted the added tokens of " + std::string(out.name()) + ", found no " +
                         std::string(text));
  }
  // If one of the tokens for calls is missing, none of them is used.
  if (!missing.empty())
    for (const auto& [text, member] : named_tokens())
      if (text.find("tool") != text.npos) out.tokens_.*member = kNoToken;
  return out;
}

std::string_view DeepSeek::name() const {
  switch (model_) {
    case DeepSeekModel::kV3:
      return "deepseek-v3";
    case DeepSeekModel::kV31:
      return "deepseek-v3.1";
    default:
      return "deepseek-r1";
  }
}

// Most control tokens of DeepSeek are added tokens that the tokenizer does not mark as special.
bool DeepSeek::is_frame(int32_t id) const {
  return tokenizer_.is_special(id) || std::any_of(named_tokens().begin(), named_tokens().end(),
                                                  [&](const NamedToken& t) { return tokens_.*t.id == id; });
}

Status DeepSeek::need_calls() const {
  if (has_calls()) return {};
  return unsupported("tokenizer: wanted the added tokens of calls (" + std::string(kCallsToken) +
                     " and others), found only some; send no functions");
}

std::optional<bool> DeepSeek::thinking_after(const std::vector<Message>& messages,
                                             std::optional<bool> thinking) const {
  const auto last = std::find_if(messages.rbegin(), messages.rend(), [](const Message& m) {
    return m.role != ChatRole::kSystem && m.role != ChatRole::kDeveloper;
  });
  const bool found = last != messages.rend();
  if (model_ == DeepSeekModel::kV31 && !(found && last->role == ChatRole::kUser)) return false;
  if (model_ == DeepSeekModel::kR1Opened && found && last->role == ChatRole::kTool) return false;
  return thinking;
}

Result<std::vector<int32_t>> DeepSeek::call_start(const std::string& function,
                                                  std::optional<bool> thinking) const {
  SLUICE_TRY(need_calls());
  std::string text;
  // What the answer begins with if the model does not reason.
  if (model_ == DeepSeekModel::kR1Opened && thinking.value_or(true)) text = "\n</think>\n\n";
  if (model_ == DeepSeekModel::kR1) text = "<think>\n\n</think>\n\n";
  if (model_ == DeepSeekModel::kV31 && thinking.value_or(false)) text = "</think>";
  std::vector<int32_t> ids;
  SLUICE_TRY(encode_frame(
      text + std::string(kCallsToken) + std::string(kCallToken) + deepseek_call_head(*this, function), &ids));
  return ids;
}

std::unique_ptr<AnswerParser> DeepSeek::parser(const AnswerContext& context) const {
  const bool opened = (model_ == DeepSeekModel::kR1Opened && context.thinking.value_or(true)) ||
                      (model_ == DeepSeekModel::kV31 && context.thinking.value_or(false));
  return std::make_unique<DeepSeekParser>(
      *this,
      context.continues ? PartParser::Begin::kText
      : opened          ? PartParser::Begin::kReasoning
                        : PartParser::Begin::kAnswer,
      context.calls && has_calls() ? PartParser::Calls::kRead : PartParser::Calls::kText);
}

Result<std::unique_ptr<ChatGate>> DeepSeek::gate(const AnswerEnds& ends, std::optional<bool> thinking) const {
  using Begin = FrameGate::Begin;
  if (!ends.functions.empty()) SLUICE_TRY(need_calls());
  AnswerFrame frame{.end = tokens_.end,
                    .think = tokens_.think,
                    .end_think = tokens_.end_think,
                    .end_call = tokens_.end_call,
                    .first_call = {tokens_.calls, tokens_.call},
                    .finish = {tokens_.end_calls, tokens_.end}};
  const std::string fence = has_fences() ? "\n```" : "", line = has_fences() ? "\n" : "";
  if (is_r1()) SLUICE_TRY(encode_frame("\n\n", &frame.after_reasoning));
  SLUICE_TRY(encode_frame(line + std::string(kCallToken), &frame.next_call));
  SLUICE_TRY(encode_frame(fence + std::string(kEndCallToken), &frame.call_end));
  for (const std::string& function : ends.functions)
    SLUICE_TRY(encode_frame(deepseek_call_head(*this, function), &frame.call_heads.emplace_back()));
  Begin begin = Begin::kAnswer;
  if (is_r1()) begin = Begin::kEither;
  if (model_ == DeepSeekModel::kR1Opened && thinking.value_or(true)) begin = Begin::kReasoning;
  if (model_ == DeepSeekModel::kV31 && thinking.value_or(false)) begin = Begin::kReasoning;
  if (ends.continues) begin = Begin::kText;
  return FrameGate::make(std::move(frame), ends, begin);
}

namespace {

// All string literals in DeepSeek's templates and in vLLM's templates for DeepSeek's tools. A template with another string belongs to another
// format.
constexpr std::string_view kDeepSeekStrings[] = {
    "",
    "\n",
    "\n\n",
    "role",
    "content",
    "system",
    "user",
    "assistant",
    "tool",
    "tool_calls",
    "type",
    "function",
    "name",
    "arguments",
    "prefix",
    "```",
    "```json",
    "<think>",
    "</think>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜Assistant｜><think>\n",
    "<｜Assistant｜></think>",
    "<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
    "<｜end▁of▁sentence｜>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "\n<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
    "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>",
    "<｜tool▁output▁begin｜>",
    "\n<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
    "<｜tool▁outputs▁end｜>",
    // Parts of the section that describes functions. The templates for V3 and R1 join this section from
    // several strings.
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided "
    "with function signatures within "
    "<tools></tools> XML tags:\n<tools>",
    "\n</tools>\n\n",
    "For function call returns, you should first print <｜tool▁calls▁begin｜>",
    "For each function call, you should return object like:\n",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜><function_name>\n```json\n<function_arguments_in_json_format>"
    "\n```<｜tool▁call▁end｜>",
    "At the end of function call returns, you should print <｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
    "You are a helpful assistant with tool calling capabilities. ",
    "When a tool call is needed, you MUST use the following format to issue the call:\n",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>FUNCTION_NAME\n",
    "```json\n{\"param1\": \"value1\", \"param2\": "
    "\"value2\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>\n\n",
    "Make sure the JSON is valid.",
    "## Tools\n\n### Function\n\nYou have the following functions available:\n\n",
    "\n```json\n",
    "\n```\n",
    "## Tools\nYou have access to the following tools:\n",
    "\n### ",
    "\nDescription: ",
    "\n\nParameters: ",
};

std::optional<DeepSeekModel> deepseek_model_of(const std::optional<std::string>& chat_template) {
  const auto words = template_words(chat_template.value_or(""));
  if (!words || words->has_text) return {};
  const auto is_known = [](const std::string& text) {
    return std::find(std::begin(kDeepSeekStrings), std::end(kDeepSeekStrings), text) !=
               std::end(kDeepSeekStrings) ||
           text == deepseek_tool_text(DeepSeekModel::kV31).tail;
  };
  if (!std::all_of(words->strings.begin(), words->strings.end(), is_known)) return {};
  for (const std::string_view text : {"<｜User｜>", "<｜tool▁sep｜>", "<｜tool▁output▁end｜>"})
    if (!words->has_string(text)) return {};
  // Only V3.1 writes calls without a fence.
  if (words->has_string("```json") == words->has_string("<｜Assistant｜></think>")) return {};
  if (!words->has_string("```json"))
    return words->has_name("thinking") ? std::optional(DeepSeekModel::kV31) : std::nullopt;
  if (words->has_string("<｜Assistant｜><think>\n")) return DeepSeekModel::kR1Opened;
  return words->has_string("</think>") ? DeepSeekModel::kR1 : DeepSeekModel::kV3;
}

// If R1 was named, the template tells which R1 it is. Without R1's template the prompt ends with <think>, which works for both.
DeepSeekModel of_files(DeepSeekModel named, const ChatFiles& files) {
  if (named != DeepSeekModel::kR1Opened) return named;
  return deepseek_model_of(files.chat_template) == DeepSeekModel::kR1 ? DeepSeekModel::kR1 : named;
}

template <DeepSeekModel model>
bool is_deepseek(const ChatFiles& files) {
  const DeepSeekModel found = of_files(model, files);
  return deepseek_model_of(files.chat_template) == found && DeepSeek::from(files.tokenizer, found).ok();
}

template <DeepSeekModel model>
Result<ChatFormatPointer> open_deepseek(const ChatFiles& files) {
  auto format = DeepSeek::from(files.tokenizer, of_files(model, files));
  if (!format.ok()) return format.status();
  return ChatFormatPointer(std::make_shared<const DeepSeek>(std::move(format).value()));
}

template <DeepSeekModel model>
constexpr ChatFormatEntry deepseek_entry(std::string_view name, ParserNames parsers) {
  return {.name = name, .fits = is_deepseek<model>, .open = open_deepseek<model>, .parsers = parsers};
}

}  // namespace

const ChatFormatEntry kDeepSeekV3Format = deepseek_entry<DeepSeekModel::kV3>(
    "deepseek-v3", {.reasoning = "deepseek_v3 deepseek-v3", .tools = "deepseek_v3 deepseekv3"});
const ChatFormatEntry kDeepSeekR1Format = deepseek_entry<DeepSeekModel::kR1Opened>(
    "deepseek-r1", {.reasoning = "deepseek_r1 deepseek-r1", .tools = "deepseek_v3 deepseekv3"});
const ChatFormatEntry kDeepSeekV31Format = deepseek_entry<DeepSeekModel::kV31>(
    "deepseek-v3.1", {.reasoning = "deepseek_v3 deepseek-v3", .tools = "deepseek_v31 deepseekv31"});

}  // namespace sluice
