// Requests of /v1/responses.
#include <algorithm>

#include "base/printable.h"
#include "server/requests/fields.h"
#include "server/requests/messages.h"
#include "server/requests/structure.h"
#include "server/requests/unsupported.h"

namespace sluice {
namespace {

constexpr size_t kMetadataMax = 16, kMetadataKeyMax = 64, kMetadataValueMax = 512;
constexpr const char* kLogprobs = "message.output_text.logprobs";
constexpr const char* kEncrypted =
    "reasoning.encrypted_content";  // accepted, but reported as a feature that Sluice does not have

size_t metadata_characters(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

void read_reasoning(const JsonAt& item, ApiFields* fields, ConversationReader* out) {
  for (const char* key : {"content", "summary"}) {
    if (!item.has(key)) continue;
    const std::string text =
        read_content(item.at(key).value(), {"reasoning_text", "summary_text"}, fields, out->ignored());
    if (!text.empty()) return out->reason(text);
  }
}

void read_said(const JsonAt& item, ApiFields* fields, ConversationReader* out) {
  const auto role = item.string("role");
  if (!role.ok()) return fields->fail(role.status());
  const auto content_at = item.at("content");
  if (!content_at.ok()) return fields->fail(content_at.status());
  const std::string content =
      read_content(content_at.value(), {"input_text", "output_text", "text"}, fields, out->ignored());
  if (item.has("prefix") && item.at("prefix").value().value() != Json(false))
    return fields->fail(item.at("prefix").value(),
                        "false or null, because a response does not continue a message");
  const auto parsed = parse_role(role.value());
  if (parsed == ChatRole::kSystem || parsed == ChatRole::kDeveloper)
    out->instruct(content);
  else if (parsed == ChatRole::kAssistant)
    out->answer(content, Said::kFinal);
  else if (parsed == ChatRole::kUser)
    out->add_user_message(content);
  else
    fields->fail(item.at("role").value(), "system, developer, user or assistant");
}

// Notes members that are unknown for the item's type. Items of earlier answers, which clients send back, have `id` and `status`.
void note_unread_of_item(const JsonAt& item, const std::string& type, ConversationReader* out) {
  if (type == "message")
    note_unread(item, {"type", "id", "status", "role", "content", "prefix"}, out->ignored());
  else if (type == "reasoning")
    note_unread(item, {"type", "id", "status", "summary", "content"}, out->ignored());
  else if (type == "function_call")
    note_unread(item, {"type", "id", "status", "call_id", "name", "arguments"}, out->ignored());
  else
    note_unread(item, {"type", "id", "status", "call_id", "output"}, out->ignored());
}

void read_item(const JsonAt& item, ApiFields* fields, ConversationReader* out) {
  const auto type = item.string("type", "message");
  if (!type.ok()) return fields->fail(type.status());
  note_unread_of_item(item, type.value(), out);
  if (type.value() == "message") return read_said(item, fields, out);
  if (type.value() == "reasoning") return read_reasoning(item, fields, out);
  const bool is_call = type.value() == "function_call";
  if (!is_call && type.value() != "function_call_output")
    return fields->fail(item.at("type").value(),
                        "\"message\", \"reasoning\", \"function_call\" or \"function_call_output\"");
  const auto id = item.string("call_id");
  if (!id.ok()) return fields->fail(id.status());
  if (!is_call) {
    const auto output = item.at("output");
    if (!output.ok()) return fields->fail(output.status());
    const std::string content =
        read_content(output.value(), {"input_text", "output_text", "text"}, fields, out->ignored());
    if (!out->call_output(id.value(), content))
      fields->fail(item.at("call_id").value(), "the id of an earlier call");
    return;
  }
  const auto name = item.string("name"), arguments = item.string("arguments");
  for (const Status& status : {name.status(), arguments.status()})
    if (!status.ok()) return fields->fail(status);
  if (!fits_call(item, "call_id", item, fields)) return;
  out->call(id.value(), name.value(), arguments.value());
}

void read_input(ApiFields* fields, ApiRequest* out) {
  const auto at = fields->take("input");
  if (!at)
    return fields->fail({Code::kInvalidArgument, "body: input: wanted a text or an array, found none"});
  ConversationReader reader(out);
  if (at->value().is_string()) return reader.add_user_message(at->value().get<std::string>());
  if (!at->value().is_array() || at->value().empty())
    return fields->fail(*at, "a string or an array of at least one item");
  for (const JsonAt& item : items_of(*at)) {
    read_item(item, fields, &reader);
    if (fields->failed()) return;
  }
}

void read_previous(ApiFields* fields, const FindResponse& stored, ApiRequest* out) {
  const auto at = fields->take("previous_response_id");
  if (!at) return;
  const std::string id = fields->string("previous_response_id");
  if (fields->failed()) return;
  if (const auto found = stored(id))
    out->conversation = found->conversation;
  else
    fields->fail(*at, "the id of a stored response");
}

// Reads {"effort": "low", "summary": "auto"}.
void read_reasoning_options(ApiFields* fields, ApiRequest* out) {
  const auto at = fields->take("reasoning");
  if (!at) return;
  fields->inside(*at, [&](ApiFields* inside) {
    read_effort("effort", inside, out);
    note_summary(inside, out);
    refuse_reasoning(inside);
    note_unread(*inside, "reasoning.", out);
  });
}

// Reads {"format": {"type": "text"}, "verbosity": "medium"}.
void read_text_options(ApiFields* fields, std::string_view body, ApiRequest* out) {
  const auto at = fields->take("text");
  if (!at) return;
  fields->inside(*at, [&](ApiFields* inside) {
    if (const auto format = inside->take("format")) read_text_format(*format, inside, body, out);
    inside->refuse("verbosity", R"(["medium"])");
    note_unread(*inside, "text.", out);
  });
}

// The answer repeats the metadata, so its size is limited, as in OpenAI's API.
void read_metadata(ApiFields* fields) {
  const auto at = fields->take("metadata");
  if (!at) return;
  if (!at->value().is_object()) return fields->fail(*at, "an object");
  const auto too_many = [&](const std::string& where, size_t limit, const char* what, size_t found) {
    fields->fail({Code::kInvalidArgument, where + ": wanted at most " + std::to_string(limit) + what +
                                              ", found " + std::to_string(found)});
  };
  if (const size_t members = at->value().size(); members > kMetadataMax)
    return too_many(at->where(), kMetadataMax, " members", members);
  for (const auto& [key, value] : at->value().items()) {
    const JsonAt member(value, at->where() + "." + shortened(key));
    if (const size_t characters = metadata_characters(key); characters > kMetadataKeyMax)
      return too_many(member.where(), kMetadataKeyMax, " characters in a key", characters);
    if (!value.is_string() || metadata_characters(value.get_ref<const std::string&>()) > kMetadataValueMax)
      return fields->fail(member, "a string of at most " + std::to_string(kMetadataValueMax) + " characters");
  }
}

void read_include(ApiFields* fields, const ApiLimits& limits, ApiRequest* request) {
  SamplingParams* out = &request->sampling;
  const auto top = fields->integer("top_logprobs", 0, limits.logprobs_max);
  if (const auto at = fields->take("include")) {
    if (!at->value().is_array()) return fields->fail(*at, "an array of strings");
    for (const JsonAt& one : items_of(*at)) {
      if (one.value() == kLogprobs)
        out->logprobs = top.value_or(0);
      else if (one.value() == kEncrypted)
        request->unmet.push_back("encrypted reasoning");
      else
        return fields->fail(one, "\"" + std::string(kLogprobs) + "\" or \"" + kEncrypted + "\"");
    }
  }
  if (top && *top > 0 && !out->logprobs)
    fields->fail({Code::kInvalidArgument, "body: top_logprobs: wanted 0 or null unless include has \"" +
                                              std::string(kLogprobs) + "\", found " + std::to_string(*top)});
}

// The members of `object` whose keys are in `keys`.
Json members_of(const Json& object, std::initializer_list<const char*> keys) {
  Json out = Json::object();
  for (const char* key : keys)
    if (const auto found = object.find(key); found != object.end()) out[key] = *found;
  return out;
}

Json tools_given_back(const Json& tools) {
  Json out = Json::array();
  for (const Json& tool : tools)
    if (tool["type"] == "function")
      out.push_back(members_of(tool, {"type", "name", "description", "parameters", "strict"}));
  return out;
}

// The members that the answer repeats from the request, each with its value or default. Unknown fields are not repeated.
std::string given_back(const Json& body) {
  static const OrderedJson kDefaults = {{"instructions", nullptr},
                                        {"max_output_tokens", nullptr},
                                        {"metadata", OrderedJson::object()},
                                        {"parallel_tool_calls", true},
                                        {"previous_response_id", nullptr},
                                        {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                                        {"store", true},
                                        {"temperature", nullptr},
                                        {"text", {{"format", {{"type", "text"}}}}},
                                        {"tool_choice", "auto"},
                                        {"tools", OrderedJson::array()},
                                        {"top_logprobs", 0},
                                        {"top_p", nullptr},
                                        {"truncation", "disabled"},
                                        {"user", nullptr}};
  const auto said = [](const std::string& name, const Json& value) {
    if (name == "tools") return tools_given_back(value);
    if (name == "reasoning") return members_of(value, {"effort", "summary"});
    if (name == "tool_choice" && value.is_object()) return members_of(value, {"type", "name"});
    if (name != "text") return value;
    Json text = members_of(value, {"format", "verbosity"});
    if (text.contains("format") && text["format"].is_object())
      text["format"] = members_of(text["format"], {"type", "name", "description", "schema", "strict"});
    return text;
  };
  std::string out;
  for (const auto& [name, value] : kDefaults.items()) {
    const auto found = body.find(name);
    const bool is_said = found != body.end() && !found->is_null();
    out += (out.empty() ? "\"" : ",\"") + name + "\":" + (is_said ? said(name, *found).dump() : value.dump());
  }
  return out;
}

}  // namespace

Result<ApiRequest, ApiError> read_response(std::string_view body, const ApiLimits& limits,
                                           const FindResponse& stored) {
  return read_body<ApiRequest>(body, [&](ApiFields* fields, ApiRequest* out) {
    out->kind = ApiKind::kResponse;
    read_previous(fields, stored, out);
    read_input(fields, out);
    read_common(fields, limits, out);
    read_structure(fields, body, out);
    if (out->choices != 1)
      fields->fail({Code::kInvalidArgument, "body: n: wanted 1, since a response has one choice, found " +
                                                std::to_string(out->choices)});
    if (!out->stop.empty())
      fields->fail(
          {Code::kInvalidArgument, "body: stop: wanted none, because a response has no stop strings"});
    out->response.instructions = fields->string("instructions");
    out->response.store = fields->boolean("store", true);
    read_reasoning_options(fields, out);
    read_effort("reasoning_effort", fields, out);
    read_template_kwargs(fields, out);
    read_text_options(fields, body, out);
    read_tools(fields, body, ToolStyle::kResponse, out);
    read_include(fields, limits, out);
    read_metadata(fields);
    refuse_unsupported_of(ApiKind::kResponse, fields);
    if (const auto max_tokens = fields->integer("max_output_tokens", 1, INT32_MAX))
      out->sampling.max_tokens = max_tokens;
    note_unread(*fields, "", out);
    if (!fields->failed()) out->response.given_back = given_back(fields->value());
  });
}

}  // namespace sluice
