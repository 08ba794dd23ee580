#include "text/chat_message.h"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
constexpr std::string_view kEfforts[] = {"low", "medium", "high"};
constexpr std::string_view kReasoning = "analysis", kCalls = "commentary", kFinal = "final";
constexpr std::string_view kFunctions = "functions.";

}  // namespace

std::string_view text(ChatRole role) { return kRoles[static_cast<size_t>(role)]; }

std::optional<ChatRole> parse_role(std::string_view word) {
  const auto found = std::find(std::begin(kRoles), std::end(kRoles), word);
  if (found == std::end(kRoles)) return {};
  return static_cast<ChatRole>(found - std::begin(kRoles));
}

std::string_view text(ReasoningEffort effort) { return kEfforts[static_cast<size_t>(effort)]; }

std::string function_recipient(const std::string& name) { return std::string(kFunctions) + name; }

std::string called_function(const std::string& recipient) {
  return recipient.starts_with(kFunctions) ? recipient.substr(kFunctions.size()) : "";
}

bool is_function_name(const std::string& name) {
  return !name.empty() && name.size() <= kFunctionNameMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                  c == '-';
         });
}

Message user_message(std::string content) { return {.role = ChatRole::kUser, .content = std::move(content)}; }

Message instruction_message(std::string content) {
  return {.role = ChatRole::kDeveloper, .content = std::move(content)};
}

Message reasoning_message(std::string content) {
  return {.role = ChatRole::kAssistant, .channel = std::string(kReasoning), .content = std::move(content)};
}

Message text_message(std::string content, Said said) {
  return {.role = ChatRole::kAssistant,
          .channel = std::string(said == Said::kFinal ? kFinal : kCalls),
          .content = std::move(content)};
}

Message call_message(const std::string& function, std::string arguments) {
  return {.role = ChatRole::kAssistant,
          .channel = std::string(kCalls),
          .recipient = function_recipient(function),
          .content_type = "json",
          .content = std::move(arguments)};
}

Message result_message(const std::string& function, std::string content) {
  return {.role = ChatRole::kTool,
          .name = function_recipient(function),
          .channel = std::string(kCalls),
          .recipient = "assistant",
          .content = std::move(content)};
}

bool is_reasoning(const Message& m) { return m.channel == kReasoning; }
bool is_final_text(const Message& m) { return m.role == ChatRole::kAssistant && m.channel == kFinal; }

}  // namespace sluice
