#include "server/openapi.h"

#include "server/answers/answer_json.h"

namespace sluice {
namespace {

OrderedJson ref(const char* name) { return {{"$ref", std::string("#/components/schemas/") + name}}; }
OrderedJson type(const char* name) { return {{"type", name}}; }
OrderedJson list(OrderedJson items, int64_t minimum = 0) {
  return {{"type", "array"}, {"items", std::move(items)}, {"minItems", minimum}};
}
OrderedJson one_of(std::initializer_list<const char*> words) {
  OrderedJson all = OrderedJson::array();
  for (const char* word : words) all.push_back(word);
  return {{"enum", all}};
}
OrderedJson or_absent(const char* word) { return {{"enum", OrderedJson::array({word, nullptr})}}; }
OrderedJson any_of(OrderedJson schemas) { return {{"anyOf", std::move(schemas)}}; }
OrderedJson number(double minimum, double maximum) {
  return {{"type", "number"}, {"minimum", minimum}, {"maximum", maximum}};
}
OrderedJson integer(int64_t minimum, int64_t maximum) {
  return {{"type", "integer"}, {"minimum", minimum}, {"maximum", maximum}};
}
OrderedJson object(OrderedJson properties, OrderedJson required = OrderedJson::array()) {
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}};
}

// Allows null for each of `properties`; null means the same as a missing member.
OrderedJson optional(OrderedJson properties) {
  for (auto& [name, schema] : properties.items())
    schema = any_of(OrderedJson::array({std::move(schema), type("null")}));
  return properties;
}

OrderedJson token_id(const ApiLimits& limits) { return integer(0, limits.vocab - 1); }

OrderedJson sampling_fields(const ApiLimits& limits) {
  const OrderedJson stop = any_of(OrderedJson::array(
      {{{"type", "string"}, {"minLength", 1}}, list({{"type", "string"}, {"minLength", 1}})}));
  return {
      {"model", type("string")},
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
      {"stream_options",
       object(optional({{"include_usage", type("boolean")}, {"continuous_usage_stats", type("boolean")}}))}};
}

OrderedJson effort() { return one_of({"low", "medium", "high"}); }
OrderedJson text_of_at_most(int64_t characters) { return {{"type", "string"}, {"maxLength", characters}}; }

// The fields besides response_format that constrain an answer. A request may have at most one of them.
OrderedJson structure_fields() {
  const OrderedJson schema = any_of(OrderedJson::array({type("object"), type("string")}));
  const OrderedJson choices = list({{"type", "string"}, {"minLength", 1}}, 1);
  const OrderedJson group = object(optional({{"json", schema},
                                             {"regex", type("string")},
                                             {"choice", choices},
                                             {"grammar", type("string")},
                                             {"json_object", type("boolean")}}));
  return {{"structured_outputs", group},
          {"guided_json", schema},
          {"guided_regex", type("string")},
          {"guided_choice", choices},
          {"guided_grammar", type("string")},
          {"json_schema", schema},
          {"grammar", type("string")},
          {"regex", type("string")},
          {"ebnf", type("string")}};
}

// The prompt fields that chats and responses share.
OrderedJson prompt_fields() {
  return {{"reasoning_effort", effort()},
          {"reasoning", object(optional({{"effort", effort()}}))},
          {"chat_template_kwargs", object(optional({{"reasoning_effort", effort()},
                                                    {"enable_thinking", type("boolean")},
                                                    {"thinking", type("boolean")}}))},
          {"parallel_tool_calls", type("boolean")}};
}

OrderedJson content_of(OrderedJson types) {
  const OrderedJson part =
      object({{"type", {{"enum", std::move(types)}}}, {"text", type("string")}}, {"type", "text"});
  return any_of(OrderedJson::array({type("string"), list(part)}));
}

OrderedJson function_fields() {
  return {{"name", {{"type", "string"}, {"pattern", "^[A-Za-z0-9_-]{1,64}$"}}},
          {"description", any_of(OrderedJson::array({type("string"), type("null")}))},
          {"parameters", any_of(OrderedJson::array({type("object"), type("null")}))},
          {"strict", any_of(OrderedJson::array({type("boolean"), type("null")}))}};
}

// {"type": "json_schema", "json_schema": {"name", "schema"}}. In /v1/responses, "name" and "schema" are next to "type" without the inner
// object. In a chat, "schema" alone may be next to "type".
OrderedJson format(bool of_response) {
  const OrderedJson named = {{"name", {{"type", "string"}, {"pattern", "^[A-Za-z0-9_-]{1,64}$"}}},
                             {"schema", type("object")}};
  const OrderedJson kind = {{"const", "json_schema"}};
  OrderedJson by_schema = of_response
                              ? object({{"type", kind}, {"name", named["name"]}, {"schema", named["schema"]}},
                                       {"type", "name", "schema"})
                              : object({{"type", kind}, {"json_schema", object(named, {"name", "schema"})}},
                                       {"type", "json_schema"});
  OrderedJson forms =
      OrderedJson::array({object({{"type", {{"const", "text"}}}}, {"type"}),
                          object({{"type", {{"const", "json_object"}}},
                                  {"schema", any_of(OrderedJson::array({type("object"), type("null")}))}},
                                 {"type"}),
                          std::move(by_schema)});
  if (!of_response) forms.push_back(object({{"type", kind}, {"schema", type("object")}}, {"type", "schema"}));
  return any_of(std::move(forms));
}

OrderedJson with(OrderedJson fields, const OrderedJson& more) {
  fields.update(more);
  return fields;
}

OrderedJson chat_request(const ApiLimits& limits) {
  const OrderedJson function_call =
      object({{"name", text_of_at_most(256)}, {"arguments", type("string")}}, {"name", "arguments"});
  const OrderedJson call =
      object({{"id", text_of_at_most(1024)}, {"type", or_absent("function")}, {"function", function_call}},
             {"id", "function"});
  const OrderedJson text = content_of({"text"});
  const OrderedJson user_message =
      object({{"role", one_of({"system", "developer", "user"})}, {"content", text}}, {"role", "content"});
  const OrderedJson assistant_message =
      object({{"role", {{"const", "assistant"}}},
              {"content", any_of(OrderedJson::array({text, type("null")}))},
              {"reasoning", any_of(OrderedJson::array({type("string"), type("null")}))},
              {"prefix", any_of(OrderedJson::array({type("boolean"), type("null")}))},
              {"tool_calls", any_of(OrderedJson::array({list(call), type("null")}))}},
             {"role", "content"});
  const OrderedJson result =
      object({{"role", {{"const", "tool"}}}, {"tool_call_id", type("string")}, {"content", text}},
             {"role", "tool_call_id", "content"});
  const OrderedJson function = object(function_fields(), {"name"});
  const OrderedJson tool =
      object({{"type", {{"const", "function"}}}, {"function", function}}, {"type", "function"});
  const OrderedJson named =
      object({{"type", {{"const", "function"}}}, {"function", object({{"name", type("string")}}, {"name"})}},
             {"type", "function"});
  OrderedJson fields = optional(
      with(with(with(sampling_fields(limits), structure_fields()), prompt_fields()),
           {{"max_tokens", integer(1, INT32_MAX)},
            {"max_completion_tokens", integer(1, INT32_MAX)},
            {"include_reasoning", type("boolean")},
            {"add_special_tokens", type("boolean")},
            {"add_generation_prompt", type("boolean")},
            {"continue_final_message", type("boolean")},
            {"tools", list(tool)},
            {"tool_choice", any_of(OrderedJson::array({one_of({"none", "auto", "required"}), named}))},
            {"response_format", format(false)},
            {"logprobs", type("boolean")},
            {"top_logprobs", integer(0, limits.logprobs_max)}}));
  fields["messages"] = list(any_of(OrderedJson::array({user_message, assistant_message, result})), 1);
  return object(fields, {"messages"});
}

OrderedJson completion_request(const ApiLimits& limits) {
  const OrderedJson ids = list(token_id(limits), 1);
  const OrderedJson text = {{"type", "string"}, {"minLength", 1}};
  const OrderedJson text_or_ids = any_of(OrderedJson::array({text, ids}));
  OrderedJson fields = optional(with(with(sampling_fields(limits), structure_fields()),
                                     {{"max_tokens", integer(0, INT32_MAX)},
                                      {"echo", type("boolean")},
                                      {"parse_special", type("boolean")},
                                      {"add_special_tokens", type("boolean")},
                                      {"logprobs", integer(0, limits.logprobs_max)}}));
  fields["prompt"] = any_of(OrderedJson::array({text, ids, list(text_or_ids, 1)}));
  return object(fields, {"prompt"});
}

OrderedJson response_request(const ApiLimits& limits) {
  const OrderedJson message = object({{"type", or_absent("message")},
                                      {"role", one_of({"system", "developer", "user", "assistant"})},
                                      {"content", content_of({"input_text", "output_text", "text"})}},
                                     {"role", "content"});
  const OrderedJson call = object({{"type", {{"const", "function_call"}}},
                                   {"call_id", text_of_at_most(1024)},
                                   {"name", text_of_at_most(256)},
                                   {"arguments", type("string")}},
                                  {"type", "call_id", "name", "arguments"});
  const OrderedJson output = object({{"type", {{"const", "function_call_output"}}},
                                     {"call_id", type("string")},
                                     {"output", content_of({"input_text", "output_text", "text"})}},
                                    {"type", "call_id", "output"});
  const OrderedJson reasoning = object(
      {{"type", {{"const", "reasoning"}}}, {"content", content_of({"reasoning_text", "summary_text"})}},
      {"type"});
  const OrderedJson function =
      object(with({{"type", {{"const", "function"}}}}, function_fields()), {"type", "name"});
  const OrderedJson hosted =
      object({{"type", one_of({"web_search", "web_search_preview", "file_search", "code_interpreter",
                               "image_generation", "mcp", "custom", "local_shell", "shell", "apply_patch",
                               "computer", "computer_use_preview", "tool_search", "namespace"})}},
             {"type"});
  const OrderedJson tool = any_of(OrderedJson::array({function, hosted}));
  const OrderedJson metadata = {{"type", "object"},
                                {"maxProperties", 16},
                                {"propertyNames", {{"maxLength", 64}}},
                                {"additionalProperties", text_of_at_most(512)}};
  const OrderedJson named =
      object({{"type", {{"const", "function"}}}, {"name", type("string")}}, {"type", "name"});
  OrderedJson sampling = sampling_fields(limits);
  for (const char* absent : {"n", "stop"}) sampling.erase(absent);
  OrderedJson fields = optional(
      with(with(with(sampling, structure_fields()), prompt_fields()),
           {{"instructions", type("string")},
            {"previous_response_id", type("string")},
            {"store", type("boolean")},
            {"max_output_tokens", integer(1, INT32_MAX)},
            {"metadata", metadata},
            {"tools", list(tool)},
            {"tool_choice", any_of(OrderedJson::array({one_of({"none", "auto", "required"}), named}))},
            {"text", object(optional({{"format", format(true)}}))},
            {"top_logprobs", integer(0, limits.logprobs_max)}}));
  fields["input"] = any_of(OrderedJson::array(
      {type("string"), list(any_of(OrderedJson::array({message, call, output, reasoning})), 1)}));
  return object(fields, {"input"});
}

// The JSON schemas of all complete answers, by name.
OrderedJson answers() {
  const OrderedJson error = object({{"message", type("string")},
                                    {"type", type("string")},
                                    {"param", {{"type", {"string", "null"}}}},
                                    {"code", {{"type", {"string", "null"}}}}},
                                   {"message", "type", "param", "code"});
  const OrderedJson count = integer(0, INT64_MAX);
  const OrderedJson usage =
      object({{"prompt_tokens", count}, {"completion_tokens", count}, {"total_tokens", count}},
             {"prompt_tokens", "completion_tokens", "total_tokens"});
  const OrderedJson reason = one_of({"stop", "length", "tool_calls"});
  const auto answer = [&](const char* kind, const char* said, OrderedJson schema) {
    const OrderedJson choice =
        object({{"index", count}, {said, std::move(schema)}, {"finish_reason", reason}},
               {"index", said, "finish_reason", "logprobs"});
    return object({{"id", type("string")},
                   {"object", {{"const", kind}}},
                   {"created", count},
                   {"model", type("string")},
                   {"choices", list(choice, 1)},
                   {"usage", usage}},
                  {"id", "object", "created", "model", "choices", "usage"});
  };
  const OrderedJson message = object(
      {{"role", {{"const", "assistant"}}}, {"content", {{"type", {"string", "null"}}}}}, {"role", "content"});
  const OrderedJson model =
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

OrderedJson body_of(const char* media, OrderedJson schema) {
  return {{media, {{"schema", std::move(schema)}}}};
}

struct Operation {
  const char *path, *method, *id, *summary;
  const char* request;   // the name of a schema; null: no body
  const char* answer;    // the name of a JSON schema; null: text
  bool streams = false;  // the answer may be an event stream
};
constexpr Operation kOperations[] = {
    {"/v1/chat/completions", "post", "createChatCompletion", "Generates the next message of a conversation",
     "ChatRequest", "ChatCompletion", true},
    {"/v1/completions", "post", "createCompletion", "Generates the continuation of a text",
     "CompletionRequest", "Completion", true},
    {"/v1/responses", "post", "createResponse",
     "Generates an answer as items, which the next request can continue", "ResponseRequest", "Response",
     true},
    {"/v1/responses/{id}", "get", "getResponse", "Returns a stored answer", nullptr, "Response"},
    {"/v1/responses/{id}", "delete", "deleteResponse", "Deletes a stored answer", nullptr, "Deleted"},
    {"/v1/models", "get", "listModels", "Lists the names of the model", nullptr, "Models"},
    {"/v1/models/{id}", "get", "getModel", "Returns one name of the model", nullptr, "Model"},
    {"/tokenize", "post", "tokenize", "Tokenizes a text or a conversation", "TokenizeRequest", "Tokens"},
    {"/detokenize", "post", "detokenize", "Decodes tokens to text", "DetokenizeRequest", "Text"},
    {"/health", "get", "health", "Whether the server can serve requests", nullptr, "Status"},
    {"/version", "get", "version", "The server's version", nullptr, "Version"},
    {"/metrics", "get", "metrics", "Metrics in Prometheus's text format", nullptr, nullptr},
    {"/openapi.json", "get", "openapi", "This document", nullptr, nullptr}};

OrderedJson operation_of(const Operation& o) {
  OrderedJson content = o.answer ? body_of("application/json", ref(o.answer)) : OrderedJson::object();
  if (o.streams) content["text/event-stream"] = {{"schema", OrderedJson::object()}};
  OrderedJson ok = {{"description", o.summary}};
  if (!content.empty()) ok["content"] = content;
  OrderedJson out = {
      {"operationId", o.id},
      {"summary", o.summary},
      {"responses",
       {{"200", ok},
        {"default", {{"description", "An error"}, {"content", body_of("application/json", ref("Error"))}}}}}};
  if (std::string_view(o.path) == "/health")  // its error has the same JSON schema as its success
    out["responses"]["503"] = {{"description", "The server cannot serve requests"}, {"content", content}};
  if (o.request)
    out["requestBody"] = {{"required", true}, {"content", body_of("application/json", ref(o.request))}};
  if (std::string_view(o.path).ends_with("{id}"))
    out["parameters"] = OrderedJson::array(
        {{{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", type("string")}}});
  return out;
}

}  // namespace

std::string openapi_json(const ApiLimits& limits) {
  OrderedJson schemas = answers();
  schemas["ChatRequest"] = chat_request(limits);
  schemas["CompletionRequest"] = completion_request(limits);
  schemas["ResponseRequest"] = response_request(limits);
  const OrderedJson chat = chat_request(limits);
  OrderedJson counted = OrderedJson::object();
  for (const char* same :
       {"model", "messages", "tools", "tool_choice", "response_format", "reasoning_effort", "reasoning",
        "chat_template_kwargs", "add_generation_prompt", "continue_final_message"})
    counted[same] = chat["properties"][same];
  OrderedJson of_prompt = optional({{"model", type("string")}}), of_tokens = of_prompt;
  of_prompt["prompt"] = type("string"), of_tokens["tokens"] = list(token_id(limits));
  schemas["TokenizeRequest"] = any_of(OrderedJson::array(
      {object(std::move(of_prompt), {"prompt"}), object(std::move(counted), {"messages"})}));
  schemas["DetokenizeRequest"] = object(std::move(of_tokens), {"tokens"});
  OrderedJson paths = OrderedJson::object();
  for (const Operation& o : kOperations) paths[o.path][o.method] = operation_of(o);
  return dump(
      {{"openapi", "3.1.0"},
       {"info", {{"title", "Sluice"}, {"version", SLUICE_VERSION}}},
       {"paths", paths},
       {"components",
        {{"schemas", schemas}, {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}}},
       {"security", OrderedJson::array({OrderedJson::object(), {{"key", OrderedJson::array()}}})}});
}

}  // namespace sluice
