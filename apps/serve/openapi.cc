#include "apps/serve/openapi.h"

#include "apps/serve/answer_json.h"

namespace sluice::apps {
namespace {

using Json = OrderedJson;

Json ref(const char* name) { return {{"$ref", std::string("#/components/schemas/") + name}}; }
Json type(const char* name) { return {{"type", name}}; }
Json list(Json items, int64_t least = 0) {
  return {{"type", "array"}, {"items", std::move(items)}, {"minItems", least}};
}
Json one_of(std::initializer_list<const char*> words) {
  Json all = Json::array();
  for (const char* word : words) all.push_back(word);
  return {{"enum", all}};
}
Json or_absent(const char* word) { return {{"enum", Json::array({word, nullptr})}}; }
Json any_of(Json schemas) { return {{"anyOf", std::move(schemas)}}; }
Json number(double least, double most) { return {{"type", "number"}, {"minimum", least}, {"maximum", most}}; }
Json integer(int64_t least, int64_t most) {
  return {{"type", "integer"}, {"minimum", least}, {"maximum", most}};
}
Json object(Json properties, Json required = Json::array()) {
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}};
}

// Every member may be null, which says what its absence says.
Json optional(Json properties) {
  for (auto& [name, schema] : properties.items())
    schema = any_of(Json::array({std::move(schema), type("null")}));
  return properties;
}

Json token_id(const ApiLimits& limits) { return integer(0, limits.vocab - 1); }

Json sampling_fields(const ApiLimits& limits) {
  const Json stop = any_of(
      Json::array({{{"type", "string"}, {"minLength", 1}}, list({{"type", "string"}, {"minLength", 1}})}));
  return {{"model", type("string")},
          {"temperature", number(0, limits.temperature_max)},
          {"top_p", number(0, 1)},
          {"min_p", number(0, 1)},
          {"top_k", integer(-1, INT32_MAX)},
          {"seed", integer(INT64_MIN, INT64_MAX)},
          {"frequency_penalty", number(-limits.penalty_max, limits.penalty_max)},
          {"presence_penalty", number(-limits.penalty_max, limits.penalty_max)},
          {"repetition_penalty", number(limits.repetition_min, limits.repetition_max)},
          {"logit_bias",
           {{"type", "object"}, {"additionalProperties", number(-limits.bias_max, limits.bias_max)}}},
          {"stop", stop},
          {"stop_token_ids", list(token_id(limits))},
          {"ignore_eos", type("boolean")},
          {"n", integer(1, limits.max_choices)},
          {"stream", type("boolean")},
          {"stream_options", object(optional({{"include_usage", type("boolean")}}))}};
}

Json content_of(Json types) {
  const Json part =
      object({{"type", {{"enum", std::move(types)}}}, {"text", type("string")}}, {"type", "text"});
  return any_of(Json::array({type("string"), list(part)}));
}

Json function_fields() {
  return {{"name", {{"type", "string"}, {"pattern", "^[A-Za-z0-9_-]{1,64}$"}}},
          {"description", any_of(Json::array({type("string"), type("null")}))},
          {"parameters", any_of(Json::array({type("object"), type("null")}))},
          {"strict", any_of(Json::array({type("boolean"), type("null")}))}};
}

// {"type": "json_schema", "json_schema": {"name", "schema"}}; in a response these two stand beside the type.
Json format(bool of_response) {
  const Json named = {{"name", {{"type", "string"}, {"pattern", "^[A-Za-z0-9_-]{1,64}$"}}},
                      {"schema", type("object")}};
  const Json kind = {{"const", "json_schema"}};
  Json by_schema = of_response
                       ? object({{"type", kind}, {"name", named["name"]}, {"schema", named["schema"]}},
                                {"type", "name", "schema"})
                       : object({{"type", kind}, {"json_schema", object(named, {"name", "schema"})}},
                                {"type", "json_schema"});
  return any_of(
      Json::array({object({{"type", one_of({"text", "json_object"})}}, {"type"}), std::move(by_schema)}));
}

Json with(Json fields, const Json& more) {
  fields.update(more);
  return fields;
}

Json chat_request(const ApiLimits& limits) {
  const Json called =
      object({{"name", type("string")}, {"arguments", type("string")}}, {"name", "arguments"});
  const Json call = object({{"id", type("string")}, {"type", or_absent("function")}, {"function", called}},
                           {"id", "function"});
  const Json text = content_of({"text"});
  const Json asked =
      object({{"role", one_of({"system", "developer", "user"})}, {"content", text}}, {"role", "content"});
  const Json answered = object({{"role", {{"const", "assistant"}}},
                                {"content", any_of(Json::array({text, type("null")}))},
                                {"reasoning", any_of(Json::array({type("string"), type("null")}))},
                                {"tool_calls", list(call)}},
                               {"role", "content"});
  const Json result =
      object({{"role", {{"const", "tool"}}}, {"tool_call_id", type("string")}, {"content", text}},
             {"role", "tool_call_id", "content"});
  const Json function = object(function_fields(), {"name"});
  const Json tool = object({{"type", {{"const", "function"}}}, {"function", function}}, {"type", "function"});
  const Json named =
      object({{"type", {{"const", "function"}}}, {"function", object({{"name", type("string")}}, {"name"})}},
             {"type", "function"});
  Json fields =
      optional(with(sampling_fields(limits),
                    {{"max_tokens", integer(1, INT32_MAX)},
                     {"max_completion_tokens", integer(1, INT32_MAX)},
                     {"reasoning_effort", one_of({"low", "medium", "high"})},
                     {"include_reasoning", type("boolean")},
                     {"tools", list(tool)},
                     {"tool_choice", any_of(Json::array({one_of({"none", "auto", "required"}), named}))},
                     {"response_format", format(false)},
                     {"logprobs", type("boolean")},
                     {"top_logprobs", integer(0, limits.logprobs_max)}}));
  fields["messages"] = list(any_of(Json::array({asked, answered, result})), 1);
  return object(fields, {"messages"});
}

Json completion_request(const ApiLimits& limits) {
  const Json ids = list(token_id(limits), 1);
  const Json text = {{"type", "string"}, {"minLength", 1}};
  const Json text_or_ids = any_of(Json::array({text, ids}));
  Json fields = optional(with(sampling_fields(limits), {{"max_tokens", integer(1, INT32_MAX)},
                                                        {"echo", type("boolean")},
                                                        {"parse_special", type("boolean")},
                                                        {"logprobs", integer(0, limits.logprobs_max)}}));
  fields["prompt"] = any_of(Json::array({text, ids, list(text_or_ids, 1)}));
  return object(fields, {"prompt"});
}

Json response_request(const ApiLimits& limits) {
  const Json message = object({{"type", or_absent("message")},
                               {"role", one_of({"system", "developer", "user", "assistant"})},
                               {"content", content_of({"input_text", "output_text", "text"})}},
                              {"role", "content"});
  const Json call = object({{"type", {{"const", "function_call"}}},
                            {"call_id", type("string")},
                            {"name", type("string")},
                            {"arguments", type("string")}},
                           {"type", "call_id", "name", "arguments"});
  const Json output = object({{"type", {{"const", "function_call_output"}}},
                              {"call_id", type("string")},
                              {"output", content_of({"input_text", "output_text", "text"})}},
                             {"type", "call_id", "output"});
  const Json reasoning = object(
      {{"type", {{"const", "reasoning"}}}, {"content", content_of({"reasoning_text", "summary_text"})}},
      {"type"});
  const Json tool = object(with({{"type", {{"const", "function"}}}}, function_fields()), {"type", "name"});
  const Json named = object({{"type", {{"const", "function"}}}, {"name", type("string")}}, {"type", "name"});
  Json sampling = sampling_fields(limits);
  for (const char* absent : {"n", "stop"}) sampling.erase(absent);
  Json fields = optional(
      with(sampling, {{"instructions", type("string")},
                      {"previous_response_id", type("string")},
                      {"store", type("boolean")},
                      {"max_output_tokens", integer(1, INT32_MAX)},
                      {"reasoning", object(optional({{"effort", one_of({"low", "medium", "high"})}}))},
                      {"tools", list(tool)},
                      {"tool_choice", any_of(Json::array({one_of({"none", "auto", "required"}), named}))},
                      {"text", object(optional({{"format", format(true)}}))},
                      {"top_logprobs", integer(0, limits.logprobs_max)}}));
  fields["input"] =
      any_of(Json::array({type("string"), list(any_of(Json::array({message, call, output, reasoning})), 1)}));
  return object(fields, {"input"});
}

// What whole answers have at least.
Json answers() {
  const Json error = object({{"message", type("string")},
                             {"type", type("string")},
                             {"param", {{"type", {"string", "null"}}}},
                             {"code", {{"type", {"string", "null"}}}}},
                            {"message", "type", "param", "code"});
  const Json count = integer(0, INT64_MAX);
  const Json usage = object({{"prompt_tokens", count}, {"completion_tokens", count}, {"total_tokens", count}},
                            {"prompt_tokens", "completion_tokens", "total_tokens"});
  const Json reason = one_of({"stop", "length", "tool_calls"});
  const auto answer = [&](const char* kind, const char* said, Json schema) {
    const Json choice = object({{"index", count}, {said, std::move(schema)}, {"finish_reason", reason}},
                               {"index", said, "finish_reason", "logprobs"});
    return object({{"id", type("string")},
                   {"object", {{"const", kind}}},
                   {"created", count},
                   {"model", type("string")},
                   {"choices", list(choice, 1)},
                   {"usage", usage}},
                  {"id", "object", "created", "model", "choices", "usage"});
  };
  const Json message = object(
      {{"role", {{"const", "assistant"}}}, {"content", {{"type", {"string", "null"}}}}}, {"role", "content"});
  const Json model =
      object({{"id", type("string")}, {"object", {{"const", "model"}}}, {"max_model_len", count}},
             {"id", "object", "created", "owned_by", "max_model_len"});
  return {{"Error", object({{"error", error}}, {"error"})},
          {"ChatCompletion", answer("chat.completion", "message", message)},
          {"Completion", answer("text_completion", "text", type("string"))},
          {"Response", object({{"id", type("string")},
                               {"object", {{"const", "response"}}},
                               {"status", one_of({"completed", "incomplete"})},
                               {"output", list(type("object"))}},
                              {"id", "object", "created_at", "status", "model", "output", "usage", "tools",
                               "tool_choice", "parallel_tool_calls"})},
          {"Deleted", object({{"id", type("string")}, {"deleted", {{"const", true}}}}, {"id", "deleted"})},
          {"Model", model},
          {"Models",
           object({{"object", {{"const", "list"}}}, {"data", list(ref("Model"), 1)}}, {"object", "data"})},
          {"Tokens", object({{"count", count}, {"max_model_len", count}, {"tokens", list(count)}},
                            {"count", "max_model_len", "tokens"})},
          {"Text", object({{"prompt", type("string")}}, {"prompt"})},
          {"Status", object({{"status", type("string")}}, {"status"})},
          {"Version", object({{"version", type("string")}}, {"version"})}};
}

Json body_of(const char* media, Json schema) { return {{media, {{"schema", std::move(schema)}}}}; }

struct Operation {
  const char *path, *method, *id, *summary;
  const char* request;   // a schema; null: none
  const char* answer;    // a schema of JSON; null: text
  bool streams = false;  // may answer with events
};
constexpr Operation kOperations[] = {
    {"/v1/chat/completions", "post", "createChatCompletion", "The next message of a conversation",
     "ChatRequest", "ChatCompletion", true},
    {"/v1/completions", "post", "createCompletion", "What follows a text", "CompletionRequest", "Completion",
     true},
    {"/v1/responses", "post", "createResponse", "An answer as items, which the next request can go on from",
     "ResponseRequest", "Response", true},
    {"/v1/responses/{id}", "get", "getResponse", "An answer that is stored", nullptr, "Response"},
    {"/v1/responses/{id}", "delete", "deleteResponse", "Forgets an answer", nullptr, "Deleted"},
    {"/v1/models", "get", "listModels", "The names of the model", nullptr, "Models"},
    {"/v1/models/{id}", "get", "getModel", "One of them", nullptr, "Model"},
    {"/tokenize", "post", "tokenize", "The tokens of a text or of a conversation", "TokenizeRequest",
     "Tokens"},
    {"/detokenize", "post", "detokenize", "The text of tokens", "DetokenizeRequest", "Text"},
    {"/health", "get", "health", "Whether it can serve", nullptr, "Status"},
    {"/version", "get", "version", "Its version", nullptr, "Version"},
    {"/metrics", "get", "metrics", "Counters in the text format of Prometheus", nullptr, nullptr},
    {"/openapi.json", "get", "openapi", "This document", nullptr, nullptr}};

Json operation_of(const Operation& o) {
  Json content = o.answer ? body_of("application/json", ref(o.answer)) : Json::object();
  if (o.streams) content["text/event-stream"] = {{"schema", Json::object()}};
  Json ok = {{"description", o.summary}};
  if (!content.empty()) ok["content"] = content;
  Json out = {
      {"operationId", o.id},
      {"summary", o.summary},
      {"responses",
       {{"200", ok},
        {"default", {{"description", "An error"}, {"content", body_of("application/json", ref("Error"))}}}}}};
  if (std::string_view(o.path) == "/health")  // it tells why in the same form
    out["responses"]["503"] = {{"description", "It cannot"}, {"content", content}};
  if (o.request)
    out["requestBody"] = {{"required", true}, {"content", body_of("application/json", ref(o.request))}};
  if (std::string_view(o.path).ends_with("{id}"))
    out["parameters"] =
        Json::array({{{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", type("string")}}});
  return out;
}

}  // namespace

std::string openapi_json(const ApiLimits& limits) {
  Json schemas = answers();
  schemas["ChatRequest"] = chat_request(limits);
  schemas["CompletionRequest"] = completion_request(limits);
  schemas["ResponseRequest"] = response_request(limits);
  const Json chat = chat_request(limits);
  schemas["TokenizeRequest"] =
      any_of(Json::array({object({{"prompt", type("string")}}, {"prompt"}),
                          object({{"messages", chat["properties"]["messages"]}}, {"messages"})}));
  schemas["DetokenizeRequest"] = object({{"tokens", list(token_id(limits))}}, {"tokens"});
  Json paths = Json::object();
  for (const Operation& o : kOperations) paths[o.path][o.method] = operation_of(o);
  return dump(
      {{"openapi", "3.1.0"},
       {"info", {{"title", "Sluice"}, {"version", SLUICE_VERSION}}},
       {"paths", paths},
       {"components",
        {{"schemas", schemas}, {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}}},
       {"security", Json::array({Json::object(), {{"key", Json::array()}}})}});
}

}  // namespace sluice::apps
