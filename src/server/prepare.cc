#include "server/prepare.h"

#include <algorithm>
#include <random>

#include "chat/sampling.h"
#include "models/family.h"
#include "server/answers/answer.h"
#include "server/api_errors.h"

namespace sluice {
namespace {

// The name of the field that has the request's prompt.
const char* field_of(const ApiRequest& request) {
  return request.kind == ApiKind::kChat       ? "messages"
         : request.kind == ApiKind::kResponse ? "input"
                                              : "prompt";
}

uint64_t random_seed() {
  static thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

void put_within(const SpecialEnds& ends, std::vector<int32_t>* tokens) {
  tokens->insert(tokens->begin(), ends.before.begin(), ends.before.end());
  tokens->insert(tokens->end(), ends.after.begin(), ends.after.end());
}

}  // namespace

ServedModel::ServedModel(const ModelConfig& model, int64_t max_model_len, const ChatFormat& format,
                         ChatOptions options, std::vector<std::string> names, const SettingNames& settings)
    : model_(&model),
      format_(&format),
      options_(std::move(options)),
      names_(std::move(names)),
      settings_(settings),
      limits_{.vocab = model.decoder.vocab,
              .temperature_max = kTemperatureMax,
              .penalty_max = kPenaltyMax,
              .repetition_min = kRepetitionMin,
              .repetition_max = kRepetitionMax,
              .bias_max = kLogitBiasMax},
      structured_(format, limits_.vocab),
      limit_(format.tokenizer(), max_model_len) {}

bool ServedModel::serves(const std::string& name) const {
  return name.empty() || std::find(names_.begin(), names_.end(), name) != names_.end();
}

ApiError ServedModel::too_long(const std::string& found, const char* field) const {
  return {.message = std::string(field) + ": wanted fewer than " + std::to_string(max_model_len()) +
                     " tokens (the context, " + settings_.max_model_len + "), found " + found,
          .param = field,
          .code = "context_length_exceeded"};
}

std::optional<ApiError> ServedModel::check_length(int64_t tokens, const char* field) const {
  if (limit_.fits(tokens)) return {};
  return too_long(std::to_string(tokens), field);
}

// Called before tokenizing. Rejects a text that is too long for the model even if every token is as long as the longest one.
std::optional<ApiError> ServedModel::check_bytes(int64_t bytes, const char* field) const {
  const int64_t fewest = limit_.fewest_tokens(bytes);
  if (limit_.fits(fewest)) return {};
  return too_long(std::to_string(bytes) + " bytes, at least " + std::to_string(fewest), field);
}

// Limits the log probabilities of one answer. Without max_tokens, only the log probabilities of an echoed prompt count, because the answer's length is unknown.
std::optional<ApiError> ServedModel::check_scores(const Prepared& prepared) const {
  const ApiRequest& request = prepared.request;
  const SamplingParams& s = request.sampling;
  if (!s.logprobs) return {};
  int64_t tokens = 0;
  for (const auto& prompt : prepared.prompts) {
    const int64_t length = std::ssize(prompt), room = max_model_len() - length;
    tokens += (request.echo ? length : 0) + std::min(s.max_tokens.value_or(0), room);
  }
  const int64_t scores = tokens * request.choices * (1 + *s.logprobs);
  if (scores <= limits_.scores_max) return {};
  const char* field = request.kind == ApiKind::kCompletion ? "logprobs" : "top_logprobs";
  return ApiError{.message = std::string(field) + ": wanted at most " + std::to_string(limits_.scores_max) +
                             " log probabilities in an answer, found " + std::to_string(scores) + " with " +
                             std::to_string(1 + *s.logprobs) +
                             " for each token; reduce logprobs, n or max_tokens",
                  .param = field};
}

Result<std::vector<int32_t>, ApiError> ServedModel::tokens_of(const ApiRequest& chat) const {
  std::string instructions = chat.response.instructions;
  const std::string& more = chat.conversation.instructions;
  if (!more.empty()) instructions += (instructions.empty() ? "" : "\n\n") + more;
  int64_t bytes = std::ssize(instructions);
  for (const Message& m : chat.conversation.messages)
    bytes += std::ssize(m.content) + std::ssize(m.recipient);
  if (chat.response_format) bytes += std::ssize(chat.response_format->schema);
  const char* field = field_of(chat);
  if (const auto error = check_bytes(bytes, field)) return *error;
  Conversation conversation{.options = options_, .messages = chat.conversation.messages, .end = chat.end};
  // Even an empty system message replaces the server's own instructions.
  if (!instructions.empty() || chat.conversation.has_instructions)
    conversation.options.developer_instructions = instructions;
  conversation.options.has_instructions = chat.conversation.has_instructions;
  conversation.options.thinking = chat.thinking;
  if (chat.tools.offered()) {
    auto section = format().functions_text(chat.tools.functions);
    if (!section.ok()) return ApiError{.message = "tools: " + section.status().message, .param = "tools"};
    if (const auto error = check_bytes(std::ssize(section.value()), "tools")) return *error;
    conversation.options.functions = std::move(section).value();
  }
  if (chat.effort) conversation.options.effort = *chat.effort;
  conversation.options.response_format = chat.response_format;
  auto tokens = format().prompt(conversation);
  if (!tokens.ok())
    return ApiError{.message = std::string(field) + ": " + tokens.status().message, .param = field};
  if (chat.add_special_tokens) put_within(format().tokenizer().special_ends(), &tokens.value());
  return std::move(tokens).value();
}

Result<std::vector<int32_t>, ApiError> ServedModel::tokens_of(const std::string& text, Specials specials,
                                                              bool add_special_tokens) const {
  if (const auto error = check_bytes(std::ssize(text), "prompt")) return *error;
  std::vector<int32_t> tokens;
  const Status status = format().tokenizer().encode(text, specials, &tokens);
  if (!status.ok()) return ApiError{.message = "prompt: " + status.message, .param = "prompt"};
  if (add_special_tokens) put_within(format().tokenizer().special_ends(), &tokens);
  return tokens;
}

Result<ServedModel::Prepared, ApiError> ServedModel::finish(Prepared prepared) const {
  const ApiRequest& request = prepared.request;
  const char* field = field_of(request);
  for (size_t i = 0; i < prepared.prompts.size(); ++i) {
    const int64_t tokens = std::ssize(prepared.prompts[i]);
    if (const auto error = check_length(tokens, field)) return *error;
    const std::string name =
        field + (prepared.prompts.size() > 1 ? "[" + std::to_string(i) + "]" : std::string());
    if (tokens == 0)
      return ApiError{.message = name + ": wanted at least one token, found none", .param = name};
  }
  if (auto error = check_scores(prepared)) return *error;
  const SamplingParams& s = request.sampling;
  SamplingParams& out = prepared.sampling;
  out = sampling_params(s, *model_, format());
  if (!s.seed) out.seed = random_seed();
  if (s.max_tokens == 0) out.max_tokens = 1;  // the engine always samples one token
  if (s.logprobs == 0) out.logprobs.reset();  // the sampled token's own log probability is always returned
  if (request.echo) out.prompt_logprobs = s.logprobs;
  return prepared;
}

std::optional<ApiError> ServedModel::check_chat(ApiRequest* chat) const {
  const char* field = field_of(*chat);
  if (const Status usable = format().usable(); !usable.ok())
    return ApiError{.message = std::string(field) + ": " + usable.message, .param = field};
  const ChatAbilities can = format().abilities();
  const std::string& effort = chat->effort_field;
  if (!can.efforts && chat->effort && *chat->effort != ReasoningEffort::kMedium)
    return ApiError{.message = effort + ": wanted none, because the chat format " +
                               std::string(format().name()) + " does not support it, found \"" +
                               std::string(text(*chat->effort)) + "\"",
                    .param = effort};
  if (!can.thinking_switch && chat->needs_thinking_switch)
    return ApiError{.message = "enable_thinking: wanted null, because the chat format " +
                               std::string(format().name()) + " does not support it, found " +
                               (*chat->thinking ? "true" : "false"),
                    .param = "enable_thinking"};
  if (!can.thinking_switch) chat->thinking.reset();
  if (can.thinking_switch)
    std::erase_if(chat->ignored, [](const std::string& field) { return is_thinking_field(field); });
  if (!chat->thinking) chat->thinking = options_.thinking;
  if (!can.many_calls)
    chat->tools.parallel = true;  // nothing to forbid: the format has at most one call per answer
  return {};
}

std::optional<ApiError> ServedModel::make_prompt(Prepared* out) const {
  if (auto error = check_chat(&out->request)) return error;
  const bool next = out->request.end == PromptEnd::kNextMessage;
  if (next) format().forget_old_reasoning(&out->request.conversation.messages);
  auto tokens = tokens_of(out->request);
  if (!tokens.ok()) return tokens.error();
  out->prompts.push_back(std::move(tokens).value());
  out->request.thinking = format().thinking_after(out->request.conversation.messages, out->request.thinking);
  const std::string& named = out->request.tools.named;
  if (named.empty() || !next) return {};
  auto start = format().call_start(named, out->request.thinking);
  if (!start.ok())
    return ApiError{.message = "tool_choice: " + start.status().message, .param = "tool_choice"};
  out->forced = std::move(start).value();
  out->prompts.back().insert(out->prompts.back().end(), out->forced.begin(), out->forced.end());
  return {};
}

bool ServedModel::compiles(const ApiRequest& request) { return StructuredOutput::filters_of(request); }

std::optional<ApiError> ServedModel::constrain(Prepared* prepared, const std::stop_token& stop) const {
  if (stop.stop_requested()) return ApiError{.status = 499, .message = "the request was cancelled"};
  auto filters = structured_.filters(prepared->request, stop);
  if (!filters.ok()) return filters.error();
  prepared->make_filter = std::move(filters).value();
  return {};
}

Result<ServedModel::Prepared, ApiError> ServedModel::conversation(ApiRequest request) const {
  Prepared out{.request = std::move(request), .prompts = {}, .forced = {}, .sampling = {}};
  if (const auto error = make_prompt(&out)) return *error;
  // The prompt now contains the conversation. It is only needed again if a response is to be stored.
  if (out.request.kind == ApiKind::kChat || !out.request.response.store) out.request.conversation = {};
  return finish(std::move(out));
}

Result<ServedModel::Prepared, ApiError> ServedModel::chat(std::string_view body) const {
  auto read = read_chat(body, limits_);
  if (!read.ok()) return read.error();
  return conversation(std::move(read).value());
}

Result<ServedModel::Prepared, ApiError> ServedModel::response(std::string_view body,
                                                              const FindResponse& stored) const {
  auto read = read_response(body, limits_, stored);
  if (!read.ok()) return read.error();
  return conversation(std::move(read).value());
}

Result<ServedModel::Prepared, ApiError> ServedModel::completion(std::string_view body) const {
  auto read = read_completion(body, limits_);
  if (!read.ok()) return read.error();
  Prepared out{.request = std::move(read).value(), .prompts = {}, .forced = {}, .sampling = {}};
  for (const Prompt& prompt : out.request.prompts) {
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) {
      out.prompts.push_back(*ids);
      continue;
    }
    auto tokens =
        tokens_of(std::get<std::string>(prompt), out.request.specials, out.request.add_special_tokens);
    if (!tokens.ok()) return tokens.error();
    out.prompts.push_back(std::move(tokens).value());
  }
  return finish(std::move(out));
}

Result<std::string, ApiError> ServedModel::tokenize(std::string_view body) const {
  auto read = read_tokenize(body, limits_);
  if (!read.ok()) return read.error();
  auto& request = read.value();
  if (!serves(request.chat.model)) return unknown_model(request.chat.model);
  if (request.text) {
    const auto tokens = tokens_of(*request.text, request.specials, request.add_special_tokens);
    if (!tokens.ok()) return tokens.error();
    return tokenize_json(tokens.value(), max_model_len());
  }
  Prepared chat{.request = std::move(request.chat), .prompts = {}, .forced = {}, .sampling = {}};
  if (const auto error = make_prompt(&chat)) return *error;
  return tokenize_json(chat.prompts.front(), max_model_len());
}

Result<std::string, ApiError> ServedModel::detokenize(std::string_view body) const {
  const auto read = read_detokenize(body, limits_);
  if (!read.ok()) return read.error();
  if (!serves(read.value().model)) return unknown_model(read.value().model);
  return detokenize_json(valid_utf8(format().tokenizer().decode(read.value().tokens)));
}

}  // namespace sluice
