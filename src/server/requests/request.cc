#include "server/requests/request.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "base/printable.h"
#include "server/requests/fields.h"
#include "server/requests/messages.h"
#include "server/requests/structure.h"
#include "server/requests/unsupported.h"

namespace sluice {
namespace {

constexpr int64_t kCompletionTokens = 16;  // the OpenAI API's default of max_tokens
constexpr size_t kStopsMax = 64, kStopBytesMax = 4096;
constexpr size_t kStopTokensMax = 4096;  // limit of different stop tokens
constexpr int64_t kBiasesMax =
    1 << 20;  // limit of biases times choices, because each choice has a copy of the
              // biases

void read_stop(ApiFields* fields, StopStrings* out) {
  const auto at = fields->take("stop");
  if (!at) return;
  std::vector<JsonAt> each{*at};
  if (!at->value().is_string()) {
    if (!at->value().is_array()) return fields->fail(*at, "a string or an array of strings");
    if (at->value().size() > kStopsMax)
      return fields->fail({Code::kInvalidArgument, at->where() + ": wanted at most " +
                                                       std::to_string(kStopsMax) + " strings, found " +
                                                       std::to_string(at->value().size())});
    each.clear();
    for (const JsonAt& one : items_of(*at)) each.push_back(one);
  }
  std::vector<std::string> stops;
  for (const JsonAt& one : each) {
    auto text = one.string();
    if (!text.ok()) return fields->fail(text.status());
    if (const size_t bytes = text.value().size(); bytes == 0 || bytes > kStopBytesMax)
      return fields->fail({Code::kInvalidArgument, one.where() + ": wanted 1 to " +
                                                       std::to_string(kStopBytesMax) + " bytes, found " +
                                                       std::to_string(bytes)});
    stops.push_back(std::move(text).value());
  }
  *out = StopStrings(std::move(stops));
}

void read_stream(ApiFields* fields, ApiRequest* out) {
  out->stream = fields->boolean("stream", false);
  const auto options = fields->take("stream_options");
  if (!options) return;
  if (!out->stream) return fields->fail(*options, "null unless stream is true");
  fields->inside(*options, [&](ApiFields* inside) {
    out->include_usage = inside->boolean("include_usage", false);
    out->usage_in_each_event = inside->boolean("continuous_usage_stats", false);
    note_unread(*inside, "stream_options.", out);
  });
}

// Reads logit_bias, such as {"50256": -100}.
void read_bias(ApiFields* fields, const ApiLimits& limits, SamplingParams* out) {
  const auto at = fields->take("logit_bias");
  if (!at) return;
  if (!at->value().is_object()) return fields->fail(*at, "an object of token ids and biases");
  std::set<int32_t> seen;  // "5" and "05" are the same token
  for (const auto& [key, value] : at->value().items()) {
    int32_t id = -1;
    const char* end = key.data() + key.size();
    const bool is_id = std::from_chars(key.data(), end, id).ptr == end && id >= 0 && id < limits.vocab;
    const JsonAt bias(value, at->where() + "." + shortened(key));
    const auto number = bias.number();
    if (!is_id || !seen.insert(id).second)
      return fields->fail({Code::kInvalidArgument, bias.where() + ": wanted a token id from 0 to " +
                                                       std::to_string(limits.vocab - 1) +
                                                       " as its name, each once, found '" + shortened(key) +
                                                       "'"});
    if (!number.ok() || std::abs(number.value()) > limits.bias_max)
      return fields->fail(
          bias, "a number from " + number_text(-limits.bias_max) + " to " + number_text(limits.bias_max));
    out->logit_bias.emplace_back(id, static_cast<float>(number.value()));
  }
}

void read_sampling(ApiFields* fields, const ApiLimits& limits, int64_t tokens_min, SamplingParams* out) {
  out->temperature = fields->number("temperature", 0, limits.temperature_max);
  out->top_p = fields->number("top_p", 0, 1);
  out->min_p = fields->number("min_p", 0, 1);
  // vLLM's value for "all tokens" is -1, and the engine's is 0.
  if (const auto k = fields->integer("top_k", -1, INT32_MAX)) out->top_k = std::max<int64_t>(*k, 0);
  if (const auto seed = fields->integer("seed", INT64_MIN, INT64_MAX))
    out->seed = static_cast<uint64_t>(*seed);
  out->max_tokens = fields->integer("max_tokens", tokens_min, INT32_MAX);
  out->ignore_eos = fields->boolean("ignore_eos", false);
  out->repetition_penalty =
      fields->number("repetition_penalty", limits.repetition_min, limits.repetition_max);
  out->frequency_penalty = fields->number("frequency_penalty", -limits.penalty_max, limits.penalty_max);
  out->presence_penalty = fields->number("presence_penalty", -limits.penalty_max, limits.penalty_max);
  read_bias(fields, limits, out);
  if (const auto ids = fields->take("stop_token_ids")) {
    out->stop_token_ids = read_tokens(*ids, limits.vocab, fields);
    std::sort(out->stop_token_ids.begin(), out->stop_token_ids.end());
    const auto end = std::unique(out->stop_token_ids.begin(), out->stop_token_ids.end());
    out->stop_token_ids.erase(end, out->stop_token_ids.end());
    if (out->stop_token_ids.size() > kStopTokensMax)
      fields->fail(*ids, "at most " + std::to_string(kStopTokensMax) + " different tokens");
    out->stop_token_ids.shrink_to_fit();
  }
}

// Reads {"logprobs": true, "top_logprobs": 5}.
void read_chat_logprobs(ApiFields* fields, const ApiLimits& limits, SamplingParams* out) {
  const bool wanted = fields->boolean("logprobs", false);
  const auto top = fields->integer("top_logprobs", 0, limits.logprobs_max);
  if (wanted) out->logprobs = top.value_or(0);
  if (top && *top > 0 && !wanted)
    if (const auto at = fields->take("top_logprobs")) fields->fail(*at, "0 or null unless logprobs is true");
}

void read_prompts(ApiFields* fields, const ApiLimits& limits, ApiRequest* out) {
  const auto at = fields->take("prompt");
  if (!at) return fields->fail({Code::kInvalidArgument, "body: prompt: wanted a prompt, found none"});
  const Json& value = at->value();
  if (value.is_string()) return void(out->prompts.emplace_back(value.get<std::string>()));
  if (!value.is_array() || value.empty())
    return fields->fail(*at, "a string, an array of strings, token ids or arrays of token ids");
  if (value[0].is_number()) return void(out->prompts.emplace_back(read_tokens(*at, limits.vocab, fields)));
  if (static_cast<int64_t>(value.size()) > limits.max_choices)
    return fields->fail(*at, "at most " + std::to_string(limits.max_choices) + " prompts");
  for (const JsonAt& one : items_of(*at)) {
    if (one.value().is_string())
      out->prompts.emplace_back(one.value().get<std::string>());
    else
      out->prompts.emplace_back(read_tokens(one, limits.vocab, fields));
    if (fields->failed()) return;
  }
}

}  // namespace

void read_common(ApiFields* fields, const ApiLimits& limits, ApiRequest* out) {
  out->model = fields->string("model");
  read_sampling(fields, limits, out->kind == ApiKind::kCompletion ? 0 : 1, &out->sampling);
  out->choices = fields->integer("n", 1, limits.max_choices).value_or(1);
  const int64_t answers = out->choices * std::max<int64_t>(std::ssize(out->prompts), 1);
  const int64_t biases_max = kBiasesMax / std::max<int64_t>(answers, 1);
  if (std::ssize(out->sampling.logit_bias) > biases_max)
    fields->fail({Code::kInvalidArgument, "body: logit_bias: wanted at most " + std::to_string(biases_max) +
                                              " tokens for " + std::to_string(answers) + " answers, found " +
                                              std::to_string(out->sampling.logit_bias.size())});
  read_stop(fields, &out->stop);
  read_stream(fields, out);
  refuse_unsupported(fields);
  // If best_of equals n, all answers are returned, so it has no effect.
  fields->refuse("best_of", ("[" + std::to_string(out->choices) + "]").c_str());
}

void read_effort(const char* name, ApiFields* fields, ApiRequest* out) {
  const auto at = fields->take(name);
  if (!at) return;
  const auto word = read_word(*at, {"low", "medium", "high"}, fields);
  if (!word) return;
  const auto effort = static_cast<ReasoningEffort>(*word);
  if (out->effort && *out->effort != effort)
    return fields->fail(*at, "\"" + std::string(text(*out->effort)) + "\", which another field asks for");
  if (!out->effort) out->effort_field = field_of(*at);
  out->effort = effort;
}

void note_summary(ApiFields* reasoning, ApiRequest* out) {
  for (const char* key : {"summary", "generate_summary"})
    if (const auto at = reasoning->take(key); at && !at->value().is_null() && at->value() != "none")
      out->unmet.push_back("a summary of the reasoning");
}

namespace {

// Reads {"effort": "low", "summary": "auto"}, which is also a field of /v1/responses.
void read_reasoning(ApiFields* fields, ApiRequest* out) {
  const auto at = fields->take("reasoning");
  if (!at) return;
  fields->inside(*at, [&](ApiFields* inside) {
    read_effort("effort", inside, out);
    note_summary(inside, out);
    refuse_reasoning(inside);
    note_unread(*inside, "reasoning.", out);
  });
}

}  // namespace

void refuse_reasoning(ApiFields* reasoning) {
  reasoning->refuse("enabled", "[true]");
  reasoning->refuse("exclude", "[false]");
  reasoning->refuse("max_tokens", "[]");
}

namespace {

constexpr std::string_view kTemplateKwargs = "chat_template_kwargs.";
constexpr const char* kThinkingNames[] = {"enable_thinking",
                                          "thinking"};  // of Qwen3's and DeepSeek's templates

}  // namespace

bool is_thinking_field(std::string_view field) {
  return std::any_of(std::begin(kThinkingNames), std::end(kThinkingNames), [&](const char* name) {
    return field.starts_with(kTemplateKwargs) && field.substr(kTemplateKwargs.size()) == name;
  });
}

namespace {

void read_thinking(const char* name, ApiFields* fields, ApiRequest* out) {
  const auto at = fields->take(name);
  if (!at) return;
  const bool thinking = fields->boolean(name, true);
  if (out->thinking && *out->thinking != thinking)
    return fields->fail(*at,
                        std::string(*out->thinking ? "true" : "false") + ", which another field asks for");
  out->thinking = thinking;
}

}  // namespace

void read_template_kwargs(ApiFields* fields, ApiRequest* out) {
  read_thinking(kThinkingNames[0], fields, out);
  out->needs_thinking_switch = out->thinking.has_value();
  const auto at = fields->take("chat_template_kwargs");
  if (!at) return;
  fields->inside(*at, [&](ApiFields* inside) {
    read_effort("reasoning_effort", inside, out);
    // Only some chat formats support these names. ServedModel::check_chat() removes them from `ignored` if the model's format does.
    for (const char* name : kThinkingNames) {
      if (!inside->take(name)) continue;
      read_thinking(name, inside, out);
      out->ignored.push_back(std::string(kTemplateKwargs) + name);
    }
    inside->refuse("builtin_tools", "[[]]");
    note_unread(*inside, std::string(kTemplateKwargs), out);
  });
}

namespace {

void read_prompt_end(ApiFields* fields, ApiRequest* out) {
  const auto next_at = fields->take("add_generation_prompt");
  const auto open_at = fields->take("continue_final_message");
  const bool prefix = !out->prefix_field.empty();
  const bool open = fields->boolean("continue_final_message", prefix);
  const bool next = fields->boolean("add_generation_prompt", !open);
  const std::string field = prefix ? out->prefix_field : "continue_final_message";
  if (prefix && !open) return fields->fail(*open_at, "true or null when " + field + " is true");
  if (open && next) return fields->fail(*next_at, "false or null when " + field + " is true");
  out->end = open ? PromptEnd::kOpenMessage : next ? PromptEnd::kNextMessage : PromptEnd::kLastMessage;
  const auto& messages = out->conversation.messages;
  if (open && !prefix && !fields->failed() && (messages.empty() || !is_final_text(messages.back())))
    fields->fail(*open_at, "false or null unless the last message is a text of the assistant");
}

// Rejects a prompt that ends without an open assistant message, which only /tokenize allows, and what cannot continue a message.
void check_prompt_end(ApiFields* fields, const ApiRequest& chat) {
  if (fields->failed() || chat.end == PromptEnd::kNextMessage) return;
  if (chat.end == PromptEnd::kLastMessage)
    return fields->fail(*fields->take("add_generation_prompt"),
                        "true or null unless continue_final_message is true");
  const std::string when =
      " when " + (chat.prefix_field.empty() ? "continue_final_message" : chat.prefix_field) + " is true";
  if (chat.structure)
    return fields->fail({Code::kInvalidArgument, "body: " + chat.structure_field + ": wanted null" + when +
                                                     ", because a structure describes a whole answer"});
  if (chat.tools.choice == ApiTools::Choice::kRequired || chat.tools.choice == ApiTools::Choice::kNamed)
    fields->fail(*fields->take("tool_choice"), "\"auto\" or \"none\"" + when);
}

// Reads all fields that affect a chat's prompt.
void read_prompt_of_chat(ApiFields* fields, std::string_view body, ApiRequest* out) {
  read_messages(fields, out);
  read_structure(fields, body, out);
  read_effort("reasoning_effort", fields, out);
  read_reasoning(fields, out);
  read_template_kwargs(fields, out);
  read_tools(fields, body, ToolStyle::kChat, out);
  out->add_special_tokens =
      fields->boolean("add_special_tokens", false);  // the chat format already adds its own
  read_prompt_end(fields, out);
}

}  // namespace

Result<ApiRequest, ApiError> read_chat(std::string_view body, const ApiLimits& limits) {
  return read_body<ApiRequest>(body, [&](ApiFields* fields, ApiRequest* out) {
    read_prompt_of_chat(fields, body, out);
    read_common(fields, limits, out);
    read_chat_logprobs(fields, limits, &out->sampling);
    check_prompt_end(fields, *out);
    refuse_unsupported_of(ApiKind::kChat, fields);
    out->include_reasoning = fields->boolean("include_reasoning", true);
    const auto at = fields->take("max_completion_tokens");
    if (const auto max_tokens = fields->integer("max_completion_tokens", 1, INT32_MAX)) {
      if (out->sampling.max_tokens && out->sampling.max_tokens != max_tokens)
        fields->fail(*at,
                     "max_tokens, " + std::to_string(*out->sampling.max_tokens) + ", where both are set");
      out->sampling.max_tokens = max_tokens;
    }
    note_unread(*fields, "", out);
  });
}

Result<ApiRequest, ApiError> read_completion(std::string_view body, const ApiLimits& limits) {
  return read_body<ApiRequest>(body, [&](ApiFields* fields, ApiRequest* out) {
    out->kind = ApiKind::kCompletion;
    refuse_unsupported_of(ApiKind::kCompletion, fields);
    read_prompts(fields, limits, out);
    read_common(fields, limits, out);
    read_structure(fields, body, out);
    out->echo = fields->boolean("echo", false);
    out->sampling.logprobs = fields->integer("logprobs", 0, limits.logprobs_max);
    if (out->sampling.max_tokens == 0 && !out->echo)
      fields->fail(
          {Code::kInvalidArgument, "body: max_tokens: wanted 1 or more unless echo is true, found 0"});
    if (fields->boolean("parse_special", false)) out->specials = Specials::kParse;
    out->add_special_tokens = fields->boolean("add_special_tokens", true);
    if (!out->sampling.max_tokens) out->sampling.max_tokens = kCompletionTokens;
    if (std::ssize(out->prompts) * out->choices > limits.max_choices)
      fields->fail({Code::kInvalidArgument, "body: n: wanted at most " + std::to_string(limits.max_choices) +
                                                " answers, found " +
                                                std::to_string(std::ssize(out->prompts) * out->choices)});
    note_unread(*fields, "", out);
  });
}

Result<TokenizeRequest, ApiError> read_tokenize(std::string_view body, const ApiLimits&) {
  return read_body<TokenizeRequest>(body, [&](ApiFields* fields, TokenizeRequest* out) {
    out->chat.model = fields->string("model");
    for (const char* field : {"return_token_strs", "with_pieces"}) fields->refuse(field, "[false]");
    refuse_unsupported(fields);
    if (fields->boolean("parse_special", false)) out->specials = Specials::kParse;
    if (const auto at = fields->take("prompt")) {
      if (const auto messages = fields->take("messages"))
        return fields->fail(*messages, "null when prompt is set");
      auto text = at->string();
      if (!text.ok()) return fields->fail(text.status());
      out->text = std::move(text).value();
      out->add_special_tokens = fields->boolean("add_special_tokens", true);
    } else if (!fields->value().contains("messages")) {
      fields->fail({Code::kInvalidArgument, "body: wanted prompt or messages, found neither"});
    } else {
      read_prompt_of_chat(fields, body, &out->chat);
    }
  });
}

Result<DetokenizeRequest, ApiError> read_detokenize(std::string_view body, const ApiLimits& limits) {
  return read_body<DetokenizeRequest>(body, [&](ApiFields* fields, DetokenizeRequest* out) {
    out->model = fields->string("model");
    const auto at = fields->take("tokens");
    if (!at) return fields->fail({Code::kInvalidArgument, "body: tokens: wanted an array, found none"});
    out->tokens = read_tokens(*at, limits.vocab, fields);
    fields->refuse("skip_special_tokens", "[false]");
  });
}

}  // namespace sluice
