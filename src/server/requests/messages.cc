#include "server/requests/messages.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr size_t kToolsMax = 256;
constexpr size_t kToolValuesMax = 1 << 16,
                 kToolBytesMax = 1 << 20;  // limits of all tools together
// bytes; generous, because other servers may have produced the calls
constexpr size_t kCallNameMax = 256;
// Tools of /v1/responses that only OpenAI's server can run, or whose arguments are not JSON.
constexpr std::string_view kHosted[] = {"apply_patch",
                                        "code_interpreter",
                                        "computer",
                                        "computer_use_preview",
                                        "custom",
                                        "file_search",
                                        "image_generation",
                                        "local_shell",
                                        "mcp",
                                        "namespace",
                                        "shell",
                                        "tool_search",
                                        "web_search",
                                        "web_search_preview"};

bool is_hosted(const std::string& type) {
  // The name may end in a date as its version, such as "web_search_preview_2025_03_11".
  const size_t digits = type.find("_20");
  const std::string_view name = std::string_view(type).substr(0, digits);
  return std::find(std::begin(kHosted), std::end(kHosted), name) != std::end(kHosted);
}

// The number of values in `json`, including `json` itself.
size_t values_in(const Json& json) {
  size_t count = 1;
  if (json.is_structured())
    for (const Json& inside : json) count += values_in(inside);
  return count;
}

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
    if (!fits_call(call, "id", function.value(), fields)) return;
    note_unread(call, {"id", "type", "function"}, out->ignored());
    note_unread(function.value(), {"name", "arguments"}, out->ignored());
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
  if (!has_calls) return out->answer(content, Said::kFinal);
  if (!content.empty()) out->answer(content, Said::kBeforeCall);
  read_calls(*calls, fields, out);
}

// Reads `prefix`, a field of DeepSeek's API: if true, the answer continues the last message, which must be of the assistant.
void read_prefix(const JsonAt& at, bool may_continue, ApiFields* fields, ApiRequest* request) {
  if (!fields->boolean("prefix", false)) return;
  const JsonAt prefix = at.at("prefix").value();
  if (!may_continue) return fields->fail(prefix, "false or null outside an assistant's last message");
  request->prefix_field = field_of(prefix);
}

void read_message(const JsonAt& at, bool is_last, ApiFields* body, ApiRequest* request,
                  ConversationReader* out) {
  std::optional<ApiError> error;
  ApiFields fields(at, &error);
  const std::string role = fields.string("role");
  const auto content_at = fields.take("content");
  const std::string content = content_at ? read_content(*content_at, {"text"}, &fields, out->ignored()) : "";
  const auto parsed = parse_role(role);
  fields.refuse("function_call", "[]");
  if (parsed != ChatRole::kAssistant) fields.refuse("tool_calls", "[[]]");
  const auto calls = fields.take("tool_calls");
  const bool may_be_silent = parsed == ChatRole::kAssistant && calls && !calls->value().empty();
  read_prefix(at, is_last && parsed == ChatRole::kAssistant && !may_be_silent, &fields, request);
  const auto refuse = [&](const char* field, const std::string& wanted) {
    if (const auto found = fields.take(field)) return fields.fail(*found, wanted);
    fields.fail({Code::kInvalidArgument, at.where() + "." + field + ": wanted " + wanted + ", found none"});
  };
  if (!fields.failed() && !parsed)
    refuse("role", "system, developer, user, assistant or tool");
  else if (!fields.failed() && !content_at && !may_be_silent)
    fields.fail({Code::kInvalidArgument, at.where() + ".content: wanted a text, found none"});
  else if (parsed == ChatRole::kSystem || parsed == ChatRole::kDeveloper)
    out->instruct(content);
  else if (parsed == ChatRole::kAssistant)
    read_assistant(&fields, content, out);
  else if (parsed == ChatRole::kUser)
    out->add_user_message(content);
  else if (const std::string id = fields.string("tool_call_id"); !out->call_output(id, content))
    refuse("tool_call_id", "the id of an earlier call");
  if (error) return body->fail({Code::kInvalidArgument, "body: " + error->message});
  note_unread(fields, "messages.", request);
}

// Reads {"type": "function", "function": {"name": "f"}}, or in a response {"type": "function", "name": "f"}.
void read_named_choice(const JsonAt& at, ToolStyle style, ApiFields* fields, ApiRequest* request) {
  ApiTools* out = &request->tools;
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
  if (style == ToolStyle::kChat) {
    note_unread(at, {"type", "function"}, &request->ignored);
    note_unread(inside.value(), {"name"}, &request->ignored);
  } else {
    note_unread(at, {"type", "name"}, &request->ignored);
  }
  out->choice = ApiTools::Choice::kNamed;
  out->named = name.value();
}

void read_choice(ApiFields* fields, ToolStyle style, ApiRequest* request) {
  ApiTools* out = &request->tools;
  const auto at = fields->take("tool_choice");
  if (!at) return;
  if (at->value().is_object()) return read_named_choice(*at, style, fields, request);
  const auto word = read_word(*at, {"auto", "none", "required"}, fields);
  if (!word) return;
  out->choice = static_cast<ApiTools::Choice>(*word);
  if (out->choice == ApiTools::Choice::kRequired && out->functions.empty())
    fields->fail(*at, "\"auto\" or \"none\" when there are no functions among the tools");
}

}  // namespace

bool fits_call(const JsonAt& call, const char* id, const JsonAt& function, ApiFields* fields) {
  if (call.string(id).value().size() > kCallIdMax)
    fields->fail(call.at(id).value(), "an id of at most " + std::to_string(kCallIdMax) + " bytes");
  else if (function.string("name").value().size() > kCallNameMax)
    fields->fail(function.at("name").value(), "a name of at most " + std::to_string(kCallNameMax) + " bytes");
  return !fields->failed();
}

std::string read_content(const JsonAt& at, std::initializer_list<const char*> types, ApiFields* fields,
                         std::vector<std::string>* ignored) {
  if (at.value().is_string()) return at.value().get<std::string>();
  std::string out;
  if (!at.value().is_array()) return fields->fail(at, "a string or an array of parts"), out;
  for (const JsonAt& part : items_of(at)) {
    const auto type = part.string("type"), text = part.string("text");
    if (!type.ok()) return fields->fail(type.status()), out;
    if (std::find(types.begin(), types.end(), type.value()) == types.end())
      return fields->fail(part.at("type").value(),
                          "\"" + std::string(*types.begin()) + "\", the only supported type of part"),
             out;
    if (!text.ok()) return fields->fail(text.status()), out;
    // Clients send the parts of earlier answers back, including their annotations and log probabilities.
    note_unread(part, {"type", "text", "annotations", "logprobs"}, ignored);
    out += text.value();
  }
  return out;
}

void ConversationReader::instruct(const std::string& content) {
  if (!out_->messages.empty()) return out_->messages.push_back(instruction_message(content));
  out_->instructions += (out_->instructions.empty() ? "" : "\n\n") + content;
  out_->has_instructions = true;
}

void ConversationReader::add_user_message(const std::string& content) {
  out_->messages.push_back(user_message(content));
}

void ConversationReader::reason(const std::string& content) {
  out_->messages.push_back(reasoning_message(content));
}

void ConversationReader::answer(const std::string& content, Said said) {
  out_->messages.push_back(text_message(content, said));
}

void ConversationReader::call(const std::string& id, const std::string& function,
                              const std::string& arguments) {
  out_->function_of[id] = function;
  out_->messages.push_back(call_message(function, arguments));
}

bool ConversationReader::call_output(const std::string& id, const std::string& content) {
  const auto found = out_->function_of.find(id);
  if (found == out_->function_of.end()) return false;
  out_->messages.push_back(result_message(found->second, content));
  return true;
}

void read_messages(ApiFields* fields, ApiRequest* out) {
  const auto at = fields->take("messages");
  if (!at) return fields->fail({Code::kInvalidArgument, "body: messages: wanted an array, found none"});
  if (!at->value().is_array() || at->value().empty())
    return fields->fail(*at, "an array of at least one message");
  ConversationReader reader(out);
  const ItemsOf messages = items_of(*at);
  for (size_t i = 0; i < messages.size() && !fields->failed(); ++i)
    read_message(messages[i], i + 1 == messages.size(), fields, out, &reader);
}

namespace {

// The schema of a function's arguments as text, with the type "object" even if the schema has no type or allows others, because {} would
// allow any value. nullopt: an error was set in `fields`.
std::optional<std::string> arguments_schema(const JsonAt& parameters, const OrderedJson& ordered,
                                            ApiFields* fields) {
  if (!parameters.has("type")) {
    OrderedJson rest = ordered;
    rest.erase("type");
    return R"({"type":"object")" + (rest.empty() ? "}" : "," + rest.dump().substr(1));
  }
  const JsonAt type = parameters.at("type").value();
  if (type.value() == "object") return ordered.dump();
  const bool may_be = type.value().is_array() && std::find(type.value().begin(), type.value().end(),
                                                           Json("object")) != type.value().end();
  if (!may_be) return fields->fail(type, "\"object\", the type of arguments"), std::nullopt;
  OrderedJson schema = ordered;
  schema["type"] = "object";
  return schema.dump();
}

// Reads one function; `at` is the object that has the function's name.
void read_function(const JsonAt& at, const OrderedJson& ordered, ApiFields* fields, ApiRequest* request) {
  ApiTools* out = &request->tools;
  const auto name = at.string("name"), description = at.string("description", "");
  const auto strict = at.boolean("strict", false);
  for (const Status& status : {name.status(), description.status(), strict.status()})
    if (!status.ok()) return fields->fail(status);
  if (!is_function_name(name.value()))
    return fields->fail(at.at("name").value(), "1 to 64 letters, digits, \"_\" and \"-\"");
  const auto same = [&](const FunctionTool& f) { return f.name == name.value(); };
  if (std::any_of(out->functions.begin(), out->functions.end(), same))
    return fields->fail(at.at("name").value(), "each name once");
  FunctionTool tool{.name = name.value(), .description = description.value(), .strict = strict.value()};
  if (at.has("parameters")) {
    const JsonAt parameters = at.at("parameters").value();
    if (const Status is_object = parameters.need_object(); !is_object.ok()) return fields->fail(is_object);
    auto arguments = arguments_schema(parameters, ordered.at("parameters"), fields);
    if (!arguments) return;
    tool.parameters = ordered.at("parameters").dump();
    tool.arguments = std::move(*arguments);
  }
  note_unread(at, {"type", "name", "description", "parameters", "strict"}, &request->ignored);
  out->functions.push_back(std::move(tool));
}

size_t bytes_of(const std::vector<FunctionTool>& functions) {
  size_t bytes = 0;
  for (const FunctionTool& f : functions) bytes += f.description.size() + f.parameters.size();
  return bytes;
}

}  // namespace

void read_tools(ApiFields* fields, std::string_view body, ToolStyle style, ApiRequest* request) {
  ApiTools* out = &request->tools;
  if (const auto at = fields->take("tools")) {
    if (!at->value().is_array() || at->value().size() > kToolsMax)
      return fields->fail(*at, "an array of at most " + std::to_string(kToolsMax) + " tools");
    if (values_in(at->value()) > kToolValuesMax)
      return fields->fail(*at, "at most " + std::to_string(kToolValuesMax) + " values in its schemas");
    // The schemas' text is written from parsed values. Parsing rounds an integer of more than 64 bits to a double, so it is rejected.
    const std::string path[] = {"tools"};
    if (const auto wide = wide_integer(body, path)) return fields->fail(wrong_width(*wide));
    const auto ordered = at->value().empty() ? OrderedJson() : in_order(body, "tools");
    const ItemsOf tools = items_of(*at);
    for (size_t i = 0; i < tools.size() && !fields->failed(); ++i) {
      const JsonAt tool = tools[i];
      const auto type = tool.string("type");
      if (!type.ok()) return fields->fail(type.status());
      if (style == ToolStyle::kResponse && is_hosted(type.value())) {
        out->left_out.push_back(type.value());
        continue;
      }
      if (type.value() != "function")
        return fields->fail(tool.at("type").value(), "\"function\", the only supported type of tool");
      const auto function = style == ToolStyle::kChat ? tool.at("function") : Result<JsonAt>(tool);
      if (!function.ok()) return fields->fail(function.status());
      if (const Status is_object = function.value().need_object(); !is_object.ok())
        return fields->fail(is_object);
      if (style == ToolStyle::kChat) note_unread(tool, {"type", "function"}, &request->ignored);
      read_function(function.value(), style == ToolStyle::kChat ? ordered[i].at("function") : ordered[i],
                    fields, request);
    }
    if (bytes_of(out->functions) > kToolBytesMax)
      return fields->fail(*at,
                          "at most " + std::to_string(kToolBytesMax) + " bytes of descriptions and schemas");
  }
  read_choice(fields, style, request);
  out->parallel = fields->boolean("parallel_tool_calls", true);
}

}  // namespace sluice
