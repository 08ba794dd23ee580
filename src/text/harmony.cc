#include "text/harmony.h"

#include <algorithm>

#include "base/printable.h"

namespace sluice {
namespace {

constexpr std::string_view kChannelsLine =
    "# Valid channels: analysis, commentary, final. Channel must be included for every message.";
constexpr std::string_view kInstructions = "# Instructions\n\n";
constexpr std::string_view kCallsLine =
    "Calls to these tools must go to the commentary channel: 'functions'.";

void add_line(std::string_view line, std::string* text) {
  if (!text->empty() && !line.empty()) *text += '\n';
  *text += line;
}
void add_section(std::string_view section, std::string* text) {
  if (!text->empty() && !section.empty()) *text += "\n\n";
  *text += section;
}

// Rejects white space, which would end the field, so that the rest would be parsed as another field.
Status check_field(std::string_view name, std::string_view value) {
  for (const char c : value)
    if (static_cast<uint8_t>(c) <= ' ' || c == 0x7f)
      return invalid(std::string(name) + ": wanted no white space and no control characters, found '" +
                     shortened(valid_utf8(value)) + "'");
  // With this prefix, the value would be parsed as the recipient.
  if (value.starts_with("to="))
    return invalid(std::string(name) + ": must not begin with 'to=', found '" + shortened(valid_utf8(value)) +
                   "'");
  if (valid_utf8(value) != value)
    return invalid(std::string(name) + ": wanted UTF-8, found '" + shortened(valid_utf8(value)) + "'");
  return {};
}

Status check_header(const Message& message) {
  SLUICE_TRY(check_field("name", message.name));
  SLUICE_TRY(check_field("channel", message.channel));
  SLUICE_TRY(check_field("recipient", message.recipient));
  SLUICE_TRY(check_field("content_type", message.content_type));
  if (message.role == ChatRole::kTool && message.name.empty())
    return invalid("name: wanted the name of the tool, found none");
  if (parse_role(message.name))
    return invalid("name: wanted the name of a tool, found the role '" + message.name + "'");
  if (message.role != ChatRole::kTool && !message.name.empty())
    return invalid("name: wanted none except for a tool, found '" + shortened(message.name) + "' with role " +
                   std::string(text(message.role)));
  return {};
}

std::string developer_text(const ChatOptions& options) {
  std::string out;
  if (!options.developer_instructions.empty())
    add_section(std::string(kInstructions) + options.developer_instructions, &out);
  add_section(options.functions, &out);
  if (const auto& format = options.response_format) {
    std::string section = "# Response Formats\n\n## " + format->name + "\n\n";
    if (!format->description.empty()) section += "// " + format->description + '\n';
    add_section(section + format->schema, &out);
  }
  return out;
}

}  // namespace

std::string system_text(const ChatOptions& options) {
  std::string top = options.model_identity;
  if (!options.knowledge_cutoff.empty()) add_line("Knowledge cutoff: " + options.knowledge_cutoff, &top);
  if (!options.current_date.empty()) add_line("Current date: " + options.current_date, &top);
  add_section("Reasoning: " + std::string(text(options.effort)), &top);
  add_section(kChannelsLine, &top);
  if (!options.functions.empty()) add_line(kCallsLine, &top);
  return top;
}

Result<Harmony> Harmony::from(const Tokenizer& tokenizer) {
  Harmony h(tokenizer);
  const std::pair<std::string_view, int32_t*> wanted[] = {
      {"<|start|>", &h.start_},         {"<|end|>", &h.end_},
      {"<|message|>", &h.message_},     {"<|channel|>", &h.channel_},
      {"<|constrain|>", &h.constrain_}, {"<|return|>", &h.return_},
      {"<|call|>", &h.call_},
  };
  for (const auto& [name, id] : wanted) {
    const auto found = tokenizer.id_of(name);
    if (!found)
      return unsupported("tokenizer: wanted the special tokens of harmony, found no " + std::string(name));
    *id = *found;
  }
  return h;
}

Status Harmony::append(const Message& message, std::vector<int32_t>* ids) const {
  SLUICE_TRY(check_header(message));
  const size_t before = ids->size();
  const auto plain = [&](const std::string& words) {
    return tokenizer_.encode(words, Specials::kAsText, ids);
  };
  const bool is_call = message.role == ChatRole::kAssistant && !message.recipient.empty();
  const auto write = [&]() -> Status {
    ids->push_back(start_);
    std::string author = message.role == ChatRole::kTool ? message.name : std::string(text(message.role));
    if (!message.recipient.empty()) author += " to=" + message.recipient;
    SLUICE_TRY(plain(author));
    if (!message.channel.empty()) {
      ids->push_back(channel_);
      SLUICE_TRY(plain(message.channel));
    }
    if (!message.content_type.empty()) {
      SLUICE_TRY(plain(" "));
      ids->push_back(constrain_);
      SLUICE_TRY(plain(message.content_type));
    }
    ids->push_back(message_);
    SLUICE_TRY(plain(message.content));
    ids->push_back(is_call ? call_ : end_);
    return {};
  };
  Status status = write();
  if (!status.ok()) ids->resize(before);
  return status;
}

Result<std::vector<int32_t>> Harmony::prompt(const Conversation& conversation) const {
  std::vector<int32_t> ids;
  const ChatOptions& options = conversation.options;
  SLUICE_TRY(append({.role = ChatRole::kSystem, .content = system_text(options)}, &ids));
  if (const std::string content = developer_text(options); !content.empty())
    SLUICE_TRY(append({.role = ChatRole::kDeveloper, .content = content}, &ids));
  const auto& messages = conversation.messages;
  // The reasoning of a message to continue is kept, so that message does not count as the last final message.
  const std::ptrdiff_t open = conversation.end == PromptEnd::kOpenMessage && !messages.empty() ? 1 : 0;
  const auto last_final = std::find_if(messages.rbegin() + open, messages.rend(), is_final_text).base();
  for (auto m = messages.begin(); m != messages.end(); ++m) {
    if (m < last_final && m->role == ChatRole::kAssistant && is_reasoning(*m)) continue;
    Status status = m->role == ChatRole::kDeveloper
                        ? append({.role = m->role, .content = std::string(kInstructions) + m->content}, &ids)
                        : append(*m, &ids);
    if (!status.ok()) {
      status.message = "message " + std::to_string(m - messages.begin()) + ": " + status.message;
      return status;
    }
  }
  if (conversation.end == PromptEnd::kOpenMessage) {
    if (messages.empty()) return invalid("wanted a message to continue, found only instructions");
    ids.pop_back();
  }
  if (conversation.end != PromptEnd::kNextMessage) return ids;
  ids.push_back(start_);
  SLUICE_TRY(tokenizer_.encode(text(ChatRole::kAssistant), Specials::kAsText, &ids));
  return ids;
}

}  // namespace sluice
