#include "apps/serve/api_messages.h"

#include <algorithm>

namespace sluice::apps {
namespace {

constexpr size_t kToolsMax = 256;

void read_calls(const JsonAt& at, ApiFields* fields, ConversationReader* out) {
  if (!at.value().is_array()) return fields->fail(at, "an array of calls");
  for (const JsonAt& call : items_of(at)) {
    const auto id = call.string("id"), type = call.string("type", "function");
    const auto function = call.at("function");
    for (const Status& status : {id.status(), type.status(), function.status()})
      if (!status.ok()) return fields->fail(status);
    if (type.value() != "function") return fields->fail(call.at("type").value(), "\"function\"");
    const auto name = function.value().string("name"), arguments = function.value().string("arguments");
    for (const Status& status : {name.status(), arguments.status()})
      if (!status.ok()) return fields->fail(status);
    out->call(id.value(), name.value(), arguments.value());
  }
}

void read_assistant(ApiFields* fields, const std::string& content, ConversationReader* out) {
  std::string reasoning = fields->string("reasoning");
  const std::string older = fields->string("reasoning_content");
  const auto calls = fields->take("tool_calls");
  const bool has_calls = calls && !(calls->value().is_array() && calls->value().empty());
  if (reasoning.empty()) reasoning = older;
  if (!reasoning.empty()) out->reason(reasoning);
  using Said = ConversationReader::Said;
  if (!has_calls) return out->answer(content, Said::kFinal);
  if (!content.empty()) out->answer(content, Said::kBeforeCall);
  read_calls(*calls, fields, out);
}

void read_message(const JsonAt& at, ApiFields* body, ConversationReader* out) {
  std::optional<ApiError> error;
  ApiFields fields(at, &error);
  const std::string role = fields.string("role");
  const auto content_at = fields.take("content");
  const std::string content = content_at ? read_content(*content_at, {"text"}, &fields) : "";
  const auto parsed = parse_role(role);
  fields.refuse("function_call", "[]");
  if (parsed != ChatRole::kAssistant) fields.refuse("tool_calls", "[[]]");
  const auto calls = fields.take("tool_calls");
  const bool may_be_silent = parsed == ChatRole::kAssistant && calls && !calls->value().empty();
  if (!fields.failed() && !parsed)
    fields.fail(fields.take("role").value_or(at), "role system, developer, user, assistant or tool");
  else if (!fields.failed() && !content_at && !may_be_silent)
    fields.fail(at, "a content");
  else if (parsed == ChatRole::kSystem || parsed == ChatRole::kDeveloper)
    out->instruct(content);
  else if (parsed == ChatRole::kAssistant)
    read_assistant(&fields, content, out);
  else if (parsed == ChatRole::kUser)
    out->ask(content);
  else if (const std::string id = fields.string("tool_call_id"); !out->call_output(id, content))
    fields.fail(fields.take("tool_call_id").value_or(at), "a tool_call_id of a call before it");
  if (error) body->fail({Code::kInvalidArgument, "body: " + error->message});
}

// {"type": "function", "function": {"name": "f"}}, or with the name beside the type.
void read_named_choice(const JsonAt& at, ToolStyle style, ApiFields* fields, ApiTools* out) {
  const auto type = at.string("type");
  if (!type.ok()) return fields->fail(type.status());
  if (type.value() != "function") return fields->fail(at.at("type").value(), "\"function\"");
  const auto inside = style == ToolStyle::kChat ? at.at("function") : Result<JsonAt>(at);
  if (!inside.ok()) return fields->fail(inside.status());
  const auto name = inside.value().string("name");
  if (!name.ok()) return fields->fail(name.status());
  const auto is_it = [&](const FunctionTool& f) { return f.name == name.value(); };
  if (std::none_of(out->functions.begin(), out->functions.end(), is_it))
    return fields->fail(inside.value().at("name").value(), "the name of one of the tools");
  out->choice = ApiTools::Choice::kNamed;
  out->named = name.value();
}

void read_choice(ApiFields* fields, ToolStyle style, ApiTools* out) {
  const auto at = fields->take("tool_choice");
  if (!at) return;
  if (at->value().is_object()) return read_named_choice(*at, style, fields, out);
  const auto word = read_word(*at, {"auto", "none", "required"}, fields);
  if (!word) return;
  out->choice = static_cast<ApiTools::Choice>(*word);
  if (out->choice == ApiTools::Choice::kRequired && out->functions.empty())
    fields->fail(*at, "\"auto\" or \"none\" where there are no tools");
}

}  // namespace

std::string read_content(const JsonAt& at, std::initializer_list<const char*> types, ApiFields* fields) {
  if (at.value().is_string()) return at.value().get<std::string>();
  std::string out;
  if (!at.value().is_array()) return fields->fail(at, "a string or an array of parts"), out;
  for (const JsonAt& part : items_of(at)) {
    const auto type = part.string("type"), text = part.string("text");
    if (!type.ok()) return fields->fail(type.status()), out;
    if (std::find(types.begin(), types.end(), type.value()) == types.end())
      return fields->fail(part.at("type").value(),
                          "\"" + std::string(*types.begin()) + "\", the one kind of part that is supported"),
             out;
    if (!text.ok()) return fields->fail(text.status()), out;
    out += text.value();
  }
  return out;
}

void ConversationReader::instruct(const std::string& content) {
  if (out_->messages.empty())
    out_->instructions += (out_->instructions.empty() ? "" : "\n\n") + content;
  else
    out_->messages.push_back({.role = ChatRole::kDeveloper, .content = "# Instructions\n\n" + content});
}

void ConversationReader::ask(const std::string& content) {
  out_->messages.push_back({.role = ChatRole::kUser, .content = content});
}

void ConversationReader::reason(const std::string& content) {
  out_->messages.push_back({.role = ChatRole::kAssistant, .channel = "analysis", .content = content});
}

void ConversationReader::answer(const std::string& content, Said said) {
  out_->messages.push_back({.role = ChatRole::kAssistant,
                            .channel = said == Said::kFinal ? "final" : "commentary",
                            .content = content});
}

void ConversationReader::call(const std::string& id, const std::string& function,
                              const std::string& arguments) {
  out_->function_of[id] = function;
  out_->messages.push_back({.role = ChatRole::kAssistant,
                            .channel = "commentary",
                            .recipient = function_recipient(function),
                            .content_type = "json",
                            .content = arguments});
}

bool ConversationReader::call_output(const std::string& id, const std::string& content) {
  const auto found = out_->function_of.find(id);
  if (found == out_->function_of.end()) return false;
  out_->messages.push_back({.role = ChatRole::kTool,
                            .name = function_recipient(found->second),
                            .channel = "commentary",
                            .recipient = "assistant",
                            .content = content});
  return true;
}

void read_messages(ApiFields* fields, ApiRequest* out) {
  const auto at = fields->take("messages");
  if (!at) return fields->fail({Code::kInvalidArgument, "body: messages: wanted an array, found none"});
  if (!at->value().is_array() || at->value().empty())
    return fields->fail(*at, "an array of at least one message");
  ConversationReader reader(&out->conversation);
  for (const JsonAt& message : items_of(*at)) {
    read_message(message, fields, &reader);
    if (fields->failed()) return;
  }
}

void read_tools(ApiFields* fields, std::string_view body, ToolStyle style, ApiTools* out) {
  if (const auto at = fields->take("tools")) {
    if (!at->value().is_array() || at->value().size() > kToolsMax)
      return fields->fail(*at, "an array of at most " + std::to_string(kToolsMax) + " tools");
    if (!fits_in_order(*at, fields)) return;
    const auto ordered = at->value().empty() ? OrderedJson() : in_order(body, "tools");
    const std::vector<JsonAt> tools = items_of(*at);
    for (size_t i = 0; i < tools.size(); ++i) {
      const auto type = tools[i].string("type");
      if (!type.ok()) return fields->fail(type.status());
      if (type.value() != "function")
        return fields->fail(tools[i].at("type").value(),
                            "\"function\", the one kind of tool that is supported");
      const auto function = style == ToolStyle::kChat ? tools[i].at("function") : Result<JsonAt>(tools[i]);
      if (!function.ok()) return fields->fail(function.status());
      const auto name = function.value().string("name"),
                 description = function.value().string("description", "");
      for (const Status& status : {name.status(), description.status()})
        if (!status.ok()) return fields->fail(status);
      if (!is_function_name(name.value()))
        return fields->fail(function.value().at("name").value(), "1 to 64 letters, digits, \"_\" and \"-\"");
      const auto strict = function.value().boolean("strict", false);
      if (!strict.ok()) return fields->fail(strict.status());
      FunctionTool tool{.name = name.value(),
                        .description = description.value(),
                        .parameters = {},
                        .strict = strict.value()};
      if (function.value().has("parameters")) {
        if (const Status is_object = function.value().at("parameters").value().need_object(); !is_object.ok())
          return fields->fail(is_object);
        tool.parameters =
            (style == ToolStyle::kChat ? ordered[i]["function"] : ordered[i])["parameters"].dump();
      }
      const auto same = [&](const FunctionTool& f) { return f.name == tool.name; };
      if (std::any_of(out->functions.begin(), out->functions.end(), same))
        return fields->fail(function.value().at("name").value(), "each name once");
      out->functions.push_back(std::move(tool));
    }
  }
  read_choice(fields, style, out);
}

}  // namespace sluice::apps
